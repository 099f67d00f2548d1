// The API key, when the gateway wants one. It lives in this tab's session storage and nowhere else.
import { byId } from "/page/dom.js";

const NAME = "octavo.key";
let waiting = [];

export function headers(extra = {}) {
  const key = sessionStorage.getItem(NAME);
  return key ? { ...extra, Authorization: `Bearer ${key}` } : extra;
}

// Shows the form with the gateway's words; resolves once a key was typed.
export function askForKey(said) {
  byId("key-form").hidden = false;
  byId("key-error").textContent = sessionStorage.getItem(NAME) ? said : "";
  return new Promise((resolve) => waiting.push(resolve));
}

export function start() {
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(NAME, byId("key").value.trim());
    byId("key").value = "";
    byId("key-form").hidden = true;
    const resolved = waiting;
    waiting = [];
    for (const resolve of resolved) resolve();
  });
}

// The message of an OpenAI error body, or the status.
export async function errorOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the gateway answered ${response.status}`;
  }
}

// The data of each server-sent event; ends with the stream. Raises what fetch raises.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (data) yield data;
    }
  }
}
