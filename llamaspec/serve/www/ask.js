"use strict";
// requests to the server, and what went wrong with them in words

const $ = (id) => document.getElementById(id);
const KEY = "llamaspec-key";
const wantsKey = document.documentElement.dataset.key === "wanted";

class Refused extends Error {}

async function ask(path, body, signal) {
  const headers = {};
  const key = wantsKey ? sessionStorage.getItem(KEY) : null;
  if (key) headers.authorization = "Bearer " + key;
  if (body) headers["content-type"] = "application/json";
  // beside this page, also below a path of a proxy; credentials of an address must not be in it
  const url = new URL(path, location.origin + location.pathname);
  let reply;
  try {
    reply = await fetch(url, {
      method: body ? "POST" : "GET",
      headers,
      body: body ? JSON.stringify(body) : undefined,
      signal,
      // or a refused key would open the browser's own dialog
      credentials: wantsKey ? "omit" : "same-origin",
      cache: "no-store",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused("The server cannot be reached. Is it still running?");
  }
  if (!reply.ok) throw new Refused(await reason(reply));
  return reply;
}

async function reason(reply) {
  let found = {};
  try {
    found = (await reply.json()).error ?? {};
  } catch {
    // a proxy's own page
  }
  if (reply.status === 401 && wantsKey) {
    $("more").open = true;
    $("key").focus();
    return "The API key is missing or wrong. Enter it in the settings.";
  }
  if (found.code === "context_length_exceeded")
    return "The conversation no longer fits the model's context. Clear it, or write less. (" + found.message + ")";
  if (reply.status === 429) return "Too many others wait already; try again in a moment.";
  return found.message
    ? "The server refused: " + found.message
    : "The server answered with status " + reply.status + ".";
}

// the chunks of an answer, as they come; throws Refused, or an AbortError where the signal says so
async function* chunksOf(body, signal) {
  const reply = await ask("v1/chat/completions", { ...body, stream: true, return_tokens: true }, signal);
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Refused("The connection ended before the answer did.");
      held += value;
      const events = held.split("\n\n");
      held = events.pop();
      for (const event of events) {
        if (!event.startsWith("data: ")) continue;
        const data = event.slice(6);
        if (data === "[DONE]") return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Refused("The answer broke off: " + chunk.error.message);
        yield chunk;
      }
    }
  } catch (error) {
    if (error instanceof Refused || signal.aborted) throw error;
    throw new Refused("The connection broke before the answer ended.");
  } finally {
    reader.cancel().catch(() => {});
  }
}

// the settings as fields of a request, null where one of them is none
function settings() {
  if (!$("settings").checkValidity()) {
    $("more").open = true;
    $("settings").reportValidity();
    return null;
  }
  const found = {};
  if ($("temperature").value) found.temperature = Number($("temperature").value);
  if ($("max-tokens").value) found.max_tokens = Number($("max-tokens").value);
  return found;
}

function asMessages(messages) {
  const system = $("system").value;
  return system.trim() ? [{ role: "system", content: system }, ...messages] : messages;
}
