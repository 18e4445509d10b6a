"use strict";
// the conversation

const said = [];
let answering = null;

function bubble(kind, name) {
  const message = element("article", undefined, "message " + kind);
  message.setAttribute("aria-label", name);
  const text = element("div", undefined, "said");
  message.append(element("b", name), text);
  $("log").append(message);
  $("log").scrollTop = $("log").scrollHeight;
  return text;
}

async function send() {
  const words = $("message").value;
  const fields = settings();
  if (answering || !words.trim() || !fields) return;
  const stopper = (answering = new AbortController());
  const asked = { role: "user", content: words };
  const mine = bubble("user", "You");
  mine.textContent = words;
  const place = bubble("assistant", "Model");
  // else a screen reader would read every piece
  place.setAttribute("aria-busy", "true");
  $("message").value = "";
  $("chat-error").textContent = "";
  $("send").disabled = !($("stop").disabled = false);
  let text = "", note = "";
  try {
    const body = { ...fields, messages: asMessages([...said, asked]) };
    for await (const chunk of chunksOf(body, stopper.signal)) {
      text += chunk.choices[0]?.delta.content ?? "";
      write(place, spansOf(chunk));
      if (chunk.timings) {
        showFigures($("chat-figures"), chunk);
        $("last").hidden = false;
        if (chunk.choices[0].finish_reason === "length") note = "Cut: max tokens, the context or the time is used up.";
      }
    }
  } catch (error) {
    note = stopper.signal.aborted ? "Stopped." : "Broken off.";
    if (!stopper.signal.aborted) $("chat-error").textContent = wordsOf(error);
    if (!text && !stopper.signal.aborted) giveBack(mine, place, words);
  }
  // it may have been cleared away meanwhile
  if (text && place.isConnected) said.push(asked, { role: "assistant", content: text });
  else if (note === "Stopped.") note = "Stopped; not part of the conversation.";
  if (note) place.after(element("small", note));
  place.removeAttribute("aria-busy");
  answering = null;
  $("send").disabled = !($("stop").disabled = true);
}

function giveBack(mine, place, words) {
  mine.parentElement.remove();
  place.parentElement.remove();
  if (!$("message").value) $("message").value = words;
}

function wordsOf(error) {
  return error instanceof Refused ? error.message : "The page failed: " + error;
}

function clearChat() {
  answering?.abort();
  said.length = 0;
  $("log").replaceChildren();
  $("chat-error").textContent = "";
  $("last").hidden = true;
  $("message").focus();
}
