// One request's intervals as bars, asked for again while the request runs.
import { errorOf, headers } from "/page/access.js";
import { byId, bytes, make, ms } from "/page/dom.js";
import { showTab } from "/page/tabs.js";

const AGAIN_MS = 500;
const PHASES = ["prefill", "decode", "preempted"];
let shown = null;
let timer = 0;

function fact(node, name, value) {
  const item = make("b", "", String(value));
  node.append(`${name} `, item, "  ");
}

function factsOf(content) {
  const { request } = content;
  const node = make("p", "facts");
  const cost = request.cost;
  fact(node, "request", request.request_id);
  fact(node, request.outcome ? "outcome" : "phase", request.outcome ? `${request.outcome} ${request.reason}` : request.phase);
  if (content.ttft_ms !== undefined) fact(node, "TTFT", ms(content.ttft_ms));
  fact(node, "tokens", `${request.prompt_tokens} + ${request.output_tokens}`);
  fact(node, "cached", request.cached_tokens);
  fact(node, "device", `${ms(cost.prefill_device_us / 1000)} prefill, ${ms(cost.decode_device_us / 1000)} decode`);
  if (cost.recompute_device_us) fact(node, "recomputed", ms(cost.recompute_device_us / 1000));
  fact(node, "KV", `${bytes(cost.kv_pool_byte_s)}·s`);
  if (request.preemptions) fact(node, "preemptions", request.preemptions);
  if (request.attempts > 1) fact(node, "attempts", request.attempts);
  if (request.trace_id) fact(node, "all spans:", `octavo trace ${request.trace_id}`);
  return node;
}

function draw(content) {
  const whole = Math.max(...content.spans.map((span) => span.end_ms), 0.001);
  const rows = make("div", "spans");
  for (const span of content.spans) {
    const bar = make("div", "bar");
    const part = make("i", PHASES.includes(span.name) ? `phase-${span.name}` : `service-${span.service}`);
    part.style.left = `${(100 * span.start_ms) / whole}%`;
    part.style.width = `${Math.max(0.4, (100 * (span.end_ms - span.start_ms)) / whole)}%`;
    bar.append(part);
    const said = Object.entries(span.attributes).map(([name, value]) => `${name} ${value}`).join(", ");
    bar.title = `${span.service}: ${said}`;
    rows.append(make("span", "", span.name), bar, make("span", "", ms(span.end_ms - span.start_ms) + (span.running ? " …" : "")));
  }
  byId("waterfall").replaceChildren(factsOf(content), rows);
}

async function refresh() {
  const wanted = shown;
  if (!wanted) return;
  const query = wanted.tenant ? `?tenant=${encodeURIComponent(wanted.tenant)}` : "";
  try {
    const response = await fetch(`/live/requests/${encodeURIComponent(wanted.id)}${query}`, { headers: headers() });
    if (shown !== wanted) return;
    if (!response.ok) throw new Error(await errorOf(response));
    const content = await response.json();
    draw(content);
    if (!content.request.outcome) timer = setTimeout(refresh, AGAIN_MS);
  } catch (error) {
    byId("waterfall").replaceChildren(make("p", "error", error.message));
  }
}

export function chosen() {
  return shown?.id;
}

export function openWaterfall(id, tenant = "") {
  clearTimeout(timer);
  shown = { id, tenant };
  byId("waterfall-card").hidden = false;
  showTab("live");
  byId("waterfall-card").scrollIntoView({ block: "nearest" });
  refresh();
}

export function start() {
  byId("waterfall-close").addEventListener("click", () => {
    clearTimeout(timer);
    shown = null;
    byId("waterfall-card").hidden = true;
  });
}
