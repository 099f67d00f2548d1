// Small hands: every text goes in as text, never as markup.

export const byId = (id) => document.getElementById(id);

export function make(tag, className = "", text = "") {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== "") node.textContent = text;
  return node;
}

export function legend(node, kind, names) {
  node.replaceChildren(...names.map((name) => {
    const item = make("span");
    item.append(make("i", `${kind}-${name}`), name);
    return item;
  }));
}

export function table(node, head, rows) {
  const line = (cells, tag) => {
    const row = make("tr");
    row.append(...cells.map((cell) => make(tag, "", String(cell))));
    return row;
  };
  node.replaceChildren(line(head, "th"), ...rows.map((cells) => line(cells, "td")));
}

export function ms(value) {
  if (value === null || value === undefined) return "–";
  return value >= 1000 ? `${(value / 1000).toFixed(2)} s` : `${value.toFixed(value < 10 ? 1 : 0)} ms`;
}

export function bytes(value) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${value.toFixed(value < 10 && at ? 1 : 0)} ${units[at]}`;
}

export const count = (value) => Number(value).toLocaleString("en-US");
