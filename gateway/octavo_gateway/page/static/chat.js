// The playground: one conversation, streamed; Stop closes the connection, which cancels the request at the gateway.
import { askForKey, errorOf, events, headers } from "/page/access.js";
import { byId, bytes, make, ms } from "/page/dom.js";
import { openWaterfall } from "/page/waterfall.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed"];
let conversation = [];
let running = null;

function parameters() {
  const given = {};
  for (const name of NUMBERS) {
    const value = byId(`p-${name}`).value;
    if (value !== "") given[name] = Number(value);
  }
  if (byId("p-stop").value) given.stop = [byId("p-stop").value];
  return given;
}

function show(role, text = "") {
  const node = make("div", `message ${role}`);
  node.append(make("span", "said", text));
  byId("messages").append(node);
  node.scrollIntoView({ block: "end" });
  return node;
}

async function post(body, signal) {
  for (;;) {
    const response = await fetch("/v1/chat/completions", {
      method: "POST", body, signal, headers: headers({ "Content-Type": "application/json" }),
    });
    if (response.status !== 401) return response;
    await askForKey(await errorOf(response));
  }
}

function note(node, text, requestId) {
  const line = make("span", "note", text);
  if (requestId) {
    const button = make("button", "", "waterfall");
    button.type = "button";
    button.addEventListener("click", () => openWaterfall(requestId));
    line.append(button);
  }
  node.append(line);
}

function figures(usage, firstMs, allMs) {
  const words = [`first token ${ms(firstMs)}`, `all ${ms(allMs)}`];
  if (usage) {
    words.push(`${usage.completion_tokens} tokens after ${usage.prompt_tokens} (${usage.prompt_tokens_details.cached_tokens} cached)`);
    const cost = usage.octavo_cost;
    const device = cost.prefill_device_us + cost.decode_device_us + cost.recompute_device_us;
    words.push(`device ${ms(device / 1000)}`, `KV ${bytes(cost.kv_pool_byte_s)}·s`);
  }
  return words.join(", ");
}

async function answer(node, signal) {
  const system = byId("p-system").value.trim();
  const messages = system ? [{ role: "system", content: system }, ...conversation] : conversation;
  const began = performance.now();
  const body = JSON.stringify({
    messages, ...parameters(), stream: true, stream_options: { include_usage: true }, model: byId("model").textContent,
  });
  const response = await post(body, signal);
  if (!response.ok) throw new Error(await errorOf(response));
  const requestId = response.headers.get("x-request-id");
  node.dataset.request = requestId;
  const said = node.querySelector(".said");
  let text = "", usage = null, firstMs = null, reason = "";
  try {
    for await (const data of events(response)) {
      if (data === "[DONE]") break;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      usage = event.usage || usage;
      for (const choice of event.choices) {
        reason = choice.finish_reason || reason;
        if (!choice.delta.content) continue;
        firstMs ??= performance.now() - began;
        text += choice.delta.content;
        said.textContent = text;
        byId("messages").scrollTop = byId("messages").scrollHeight;
      }
    }
  } finally {
    if (text) conversation.push({ role: "assistant", content: text });
  }
  note(node, `${reason}: ${figures(usage, firstMs, performance.now() - began)}`, requestId);
}

async function ask(text) {
  conversation.push({ role: "user", content: text });
  show("user", text);
  const node = show("assistant");
  running = new AbortController();
  byId("send").disabled = true;
  byId("stop").disabled = false;
  try {
    await answer(node, running.signal);
  } catch (error) {
    if (error.name === "AbortError") note(node, "stopped", node.dataset.request);
    else {
      node.append(make("span", "note error", error.message));
      if (conversation.at(-1)?.role === "user") conversation.pop(); // a failed turn is not remembered
    }
  } finally {
    running = null;
    byId("send").disabled = false;
    byId("stop").disabled = true;
  }
}

export function start() {
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = byId("text").value.trim();
    if (!text || running) return;
    byId("text").value = "";
    ask(text);
  });
  byId("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      byId("ask").requestSubmit();
    }
  });
  byId("stop").addEventListener("click", () => running?.abort());
  byId("clear").addEventListener("click", () => {
    running?.abort();
    conversation = [];
    byId("messages").replaceChildren();
  });
}
