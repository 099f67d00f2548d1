// On a narrow screen one of the two halves is shown; on a wide one both are.
import { byId } from "/page/dom.js";

const NAMES = ["chat", "live"];

export function showTab(wanted) {
  for (const name of NAMES) {
    byId(`tab-${name}`).setAttribute("aria-selected", String(name === wanted));
    byId(name).toggleAttribute("data-off", name !== wanted);
  }
}

export function start() {
  for (const name of NAMES) byId(`tab-${name}`).addEventListener("click", () => showTab(name));
  showTab("chat");
}
