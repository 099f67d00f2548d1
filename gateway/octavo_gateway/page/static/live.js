// The live view: each event is one whole moment, and what is drawn depends on that moment alone.
import { askForKey, errorOf, events, headers } from "/page/access.js";
import { byId, bytes, count, legend, make, ms, table } from "/page/dom.js";
import { chosen, openWaterfall } from "/page/waterfall.js";

const PHASES = ["waiting", "loading", "prefill", "decode", "preempted", "stopping"];
const STATES = ["free", "cached", "held", "shared", "transfer"];
const MAX_ENDED = 12;
const AGAIN_MS = 1000;

function tiles(moment) {
  const latency = moment.latency;
  const met = moment.goodput.reduce((sum, item) => sum + item.met, 0);
  const all = moment.goodput.reduce((sum, item) => sum + item.met + item.missed, 0);
  const shown = [
    [moment.running_count, "running"],
    [moment.waiting_count, `waiting, ${count(moment.waiting_prompt_tokens)} prompt tokens`],
    [ms(latency.ttft_ms.p50), "TTFT p50"],
    [ms(latency.itl_ms.p99), "ITL p99"],
    [all ? `${Math.round((100 * met) / all)}%` : "–", `SLO met, ${all} requests`],
  ];
  byId("tiles").replaceChildren(...shown.map(([value, said]) => {
    const tile = make("div", "tile");
    tile.append(make("b", "", String(value)), make("span", "", said));
    return tile;
  }));
}

function part(bar, className, from, to) {
  const node = bar.querySelector(`.${className.split(" ")[0]}`) ?? bar.appendChild(make("i"));
  node.className = className;
  node.style.left = `${100 * from}%`;
  node.style.width = `${100 * Math.max(0, Math.min(1, to) - from)}%`;
}

// One row per request, kept by id so that its bar moves instead of being drawn anew.
function rows(node, requests, fill, said) {
  const known = new Map([...node.children].map((row) => [row.dataset.key, row]));
  const wanted = requests.map((request) => {
    const key = `${request.tenant} ${request.request_id}`;
    let row = known.get(key);
    if (!row) {
      row = make("button", "request");
      row.type = "button";
      row.dataset.key = key;
      row.dataset.request = request.request_id;
      row.append(make("span", "name", request.request_id), make("span", "bar"), make("span", "said"));
      row.addEventListener("click", () => openWaterfall(request.request_id, request.tenant));
    }
    fill(row.children[1], request);
    row.children[2].textContent = said(request);
    row.classList.toggle("chosen", chosen() === request.request_id);
    row.title = `${request.request_id}, tenant ${request.tenant}, ${request.workers.join(" ")}`;
    return row;
  });
  if (wanted.length !== node.children.length || wanted.some((row, at) => node.children[at] !== row)) node.replaceChildren(...wanted);
}

function progress(bar, request) {
  const whole = request.prompt_tokens * request.choices + request.max_tokens || 1;
  const prompt = (request.prompt_tokens * request.choices) / whole;
  const outputs = request.output_tokens / whole;
  const computed = Math.min(1, request.computed_tokens / Math.max(1, request.prompt_tokens)) * prompt;
  const filled = request.output_tokens ? prompt : computed;
  part(bar, `prompt phase-${request.phase}`, 0, filled);
  part(bar, `output phase-${request.phase}`, filled, filled + outputs);
}

function drawRequests(moment) {
  const under = [...moment.running, ...moment.waiting.filter((item) => !moment.running.some((other) => other.request_id === item.request_id && other.tenant === item.tenant))];
  rows(byId("running"), under, progress, (request) =>
    `${request.phase} ${request.output_tokens}/${request.max_tokens}`);
  if (!under.length) byId("running").replaceChildren(make("p", "muted", "nothing runs"));
  const ended = moment.recent.slice(0, MAX_ENDED);
  const longest = Math.max(...ended.map((request) => request.age_us), 1);
  rows(byId("recent"), ended, (bar, request) => {
    const ok = request.outcome === "finished";
    const first = (request.first_token_us || request.age_us) / longest;
    part(bar, "prompt phase-prefill", 0, first);
    part(bar, `output phase-${ok ? "ok" : "failed"}`, first, request.age_us / longest);
  }, (request) => `${request.outcome} ${ms(request.age_us / 1000)}`);
}

function cells(canvas, states, colours) {
  const width = canvas.clientWidth || 300, scale = window.devicePixelRatio || 1;
  const columns = Math.max(16, Math.min(states.length, Math.floor(width / 8)));
  const size = width / columns, lines = Math.ceil(states.length / columns) || 1;
  canvas.width = width * scale;
  canvas.height = lines * size * scale;
  canvas.style.height = `${lines * size}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  for (let at = 0; at < states.length; at += 1) {
    context.fillStyle = colours[Number(states[at])];
    context.fillRect((at % columns) * size, Math.floor(at / columns) * size, size - 1, size - 1);
  }
}

function pools(node, items) {
  while (node.children.length > items.length) node.lastChild.remove();
  const style = getComputedStyle(document.documentElement);
  const colours = STATES.map((name) => style.getPropertyValue(`--${name}`));
  items.forEach(({ title, states }, at) => {
    let row = node.children[at];
    if (!row) {
      row = make("div", "pool");
      row.append(make("p"), make("canvas"));
      node.append(row);
    }
    row.children[0].textContent = title;
    row.children[1].setAttribute("role", "img");
    row.children[1].setAttribute("aria-label", title);
    cells(row.children[1], states, colours);
  });
}

function drawPools(moment) {
  pools(byId("workers"), moment.workers.map((worker) => ({
    title: `${worker.worker_id} ${worker.state}: ${worker.running}/${worker.max_seqs} sequences, `
      + `${count(worker.blocks_total - worker.blocks_free)} of ${count(worker.blocks_total)} blocks held, `
      + `${count(worker.blocks_cached)} cached, step ${ms(worker.step_us / 1000)}`
      + (worker.blocks_per_cell > 1 ? `, ${worker.blocks_per_cell} blocks to a cell` : ""),
    states: worker.block_map,
  })));
  pools(byId("stores"), moment.stores.flatMap((store) => store.tiers.map((tier) => {
    const full = tier.capacity_bytes ? tier.used_bytes / tier.capacity_bytes : 0;
    const lit = tier.used_bytes ? Math.max(1, Math.round(128 * full)) : 0;
    return {
      title: `${store.store_id} ${tier.name}: ${bytes(tier.used_bytes)} of ${bytes(tier.capacity_bytes)}, ${count(tier.keys)} blocks, `
        + `${count(tier.hits)} hits, ${count(tier.misses)} misses`,
      states: "1".repeat(lit) + "0".repeat(128 - lit),
    };
  })));
}

function drawTables(moment) {
  const { ttft_ms: ttft, itl_ms: itl } = moment.latency;
  const line = (name, item) => [name, ms(item.p50), ms(item.p95), ms(item.p99), count(item.n)];
  table(byId("latency"), ["", "p50", "p95", "p99", "n"], [line("time to first token", ttft), line("between tokens", itl)]);
  table(byId("goodput"), ["class", "TTFT", "ITL p99", "met", "missed", "per s"], moment.goodput.map((item) => [
    item.class, item.ttft_ms ? ms(item.ttft_ms) : "any", item.itl_p99_ms ? ms(item.itl_p99_ms) : "any", item.met, item.missed,
    item.per_s.toFixed(2),
  ]));
  const limit = (value, most) => (most ? `${count(value)} of ${count(most)}` : count(value));
  table(byId("tenants"), ["tenant", "requests", "blocks", "KV share", "tokens left", "rejected"], moment.tenants.map((row) => [
    row.tenant, limit(row.requests, row.concurrency), count(row.held_blocks), row.kv_share < 1 ? `${Math.round(100 * row.kv_share)}%` : "any",
    row.rate_tokens_per_s ? limit(Math.round(row.tokens_left), row.burst_tokens) : "any", count(row.rejected),
  ]));
  table(byId("ledger"), ["technique", "entries", "saved", "cost", "held", "net", "hit tokens"], moment.ledger.map((row) => [
    row.technique.replace("_", " "), count(row.entries), ms(row.saved_ms), ms(row.cost_ms), ms(row.held_ms),
    ms(row.saved_ms - row.cost_ms - row.held_ms), row.hit_tokens ? count(row.hit_tokens) : "",
  ]));
  const trials = moment.trials.filter((row) => row.without || row.turns);
  table(byId("trials"), trials.length ? ["trial of", "prompt", "with", "without", "measured / said", "switch"] : [], trials.map((row) => [
    row.technique.replace("_", " "), row.prompt, count(row.with_it), count(row.without),
    row.calibration ? row.calibration.toFixed(2) : "", row.off ? `off: ${row.why}` : "on",
  ]));
}

function draw(moment) {
  byId("model").textContent = moment.model;
  byId("state").textContent = moment.ready ? "ready" : moment.why_not_ready || "not ready";
  byId("state").className = `pill ${moment.ready ? "ok" : "bad"}`;
  byId("workers-card").hidden = byId("ledger-card").hidden = !moment.sees_all;
  tiles(moment);
  drawRequests(moment);
  if (moment.sees_all) drawPools(moment);
  drawTables(moment);
}

async function watch(signal) {
  const response = await fetch("/live/events", { headers: headers(), signal });
  if (response.status === 401) {
    await askForKey(await errorOf(response));
    return;
  }
  if (!response.ok) throw new Error(await errorOf(response));
  for await (const data of events(response)) {
    const moment = JSON.parse(data);
    if (moment.latency) draw(moment);
  }
}

// Looks for as long as the page is visible; a hidden tab costs the gateway nothing.
async function look() {
  for (;;) {
    if (document.hidden) {
      await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
      continue;
    }
    const looking = new AbortController();
    const hide = () => document.hidden && looking.abort();
    document.addEventListener("visibilitychange", hide);
    try {
      await watch(looking.signal);
    } catch (error) {
      if (error.name !== "AbortError") {
        byId("state").textContent = `no live view: ${error.message}`;
        byId("state").className = "pill bad";
      }
    } finally {
      document.removeEventListener("visibilitychange", hide);
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
  }
}

export function start() {
  legend(byId("phases"), "phase", PHASES);
  legend(byId("states"), "state", STATES);
  look();
}
