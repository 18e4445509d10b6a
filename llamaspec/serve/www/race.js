"use strict";
// the same prompt plainly and with the draft: which is faster, and whether the tokens are the same

const lanes = {
  plain: { place: $("lane-plain"), name: "plain", fields: { draft_max: 0 } },
  drafted: { place: $("lane-drafted"), name: "speculative", fields: {} },
};
let racing = null;
let races = 0;

async function race() {
  const fields = settings();
  if (racing || !fields || !$("prompt").value.trim()) return;
  const stopper = (racing = new AbortController());
  const body = {
    ...fields,
    messages: asMessages([{ role: "user", content: $("prompt").value }]),
    cache_prompt: false,
    // both draw with the same numbers, so that the texts are to be the same at any temperature
    seed: Math.floor(Math.random() * 2 ** 31),
  };
  for (const lane of Object.values(lanes)) clearLane(lane);
  say("", "");
  $("race-error").textContent = "";
  $("start").disabled = $("replay").disabled = !($("race-stop").disabled = false);
  try {
    const order = races++ % 2 ? [lanes.plain, lanes.drafted] : [lanes.drafted, lanes.plain];
    const once = $("at-once").checked;
    if (once) await Promise.all(order.map((lane) => run(lane, body, stopper.signal)));
    else for (const lane of order) await run(lane, body, stopper.signal);
    judge(once);
    $("replay").disabled = false;
  } catch (error) {
    // of two at once the other goes on otherwise
    if (!stopper.signal.aborted) $("race-error").textContent = wordsOf(error);
    say("", stopper.signal.aborted ? "Stopped: there is no verdict." : "There is no verdict.");
    stopper.abort();
  }
  racing = null;
  $("start").disabled = !($("race-stop").disabled = true);
}

function clearLane(lane) {
  Object.assign(lane, { ids: [], events: [], last: null, seconds: 0 });
  for (const kind of ["text", "pace", "figures"]) lane.place.querySelector("." + kind).replaceChildren();
}

async function run(lane, body, signal) {
  const [text, pace] = [".text", ".pace"].map((kind) => lane.place.querySelector(kind));
  const started = performance.now();
  text.setAttribute("aria-busy", "true");
  pace.textContent = "begins";
  try {
    for await (const chunk of chunksOf({ ...body, ...lane.fields }, signal)) {
      lane.seconds = (performance.now() - started) / 1000;
      lane.ids.push(...(chunk.llamaspec?.token_ids ?? []));
      const event = { at: lane.seconds, spans: spansOf(chunk), tokens: lane.ids.length };
      lane.events.push(event);
      write(text, event.spans);
      pace.textContent = paceOf(lane, event);
      if (chunk.timings) lane.last = chunk;
    }
  } finally {
    text.removeAttribute("aria-busy");
  }
  if (!lane.last) throw new Refused("The server said nothing of how long it took.");
  showFigures(lane.place.querySelector(".figures"), lane.last);
  pace.textContent = finalPace(lane);
}

function paceOf(lane, { at, tokens }) {
  const first = lane.events.find((event) => event.tokens) ?? lane.events[0];
  const rate = at > first.at ? (tokens - first.tokens) / (at - first.at) : 0;
  return tokens + " tokens, " + number(at, 2) + " s, " + number(rate, 1) + " tokens/s";
}

function finalPace(lane) {
  return lane.last.timings.predicted_n + " tokens, " + number(lane.seconds, 2) + " s, " +
    number(lane.last.timings.predicted_per_second, 1) + " tokens/s";
}

function judge(once) {
  const { plain, drafted } = lanes;
  const ends = [plain, drafted].map((lane) => lane.last.choices[0].finish_reason);
  const length = Math.max(plain.ids.length, drafted.ids.length);
  let at = 0;
  while (at < length && plain.ids[at] === drafted.ids[at]) at++;
  if (at < length) say("different", "different at token " + (at + 1) + " of " + length);
  else if (ends[0] !== ends[1]) say("different", "different at the end: " + ends.join(", "));
  else {
    const [slow, fast] = [plain, drafted].map((lane) => lane.last.timings.predicted_per_second);
    const ratio = slow > 0 && !once ? ", " + number(fast / slow, 2) + " x the speed" : "";
    say("identical", "identical: all " + length + " tokens and the end" + ratio);
  }
}

function say(kind, words) {
  $("verdict").dataset.verdict = kind;
  $("verdict").textContent = words;
}

// both again, at the speeds that they had
function replay() {
  if (racing) return;
  const stopper = (racing = new AbortController());
  const shown = Object.values(lanes).map((lane) => ({ lane, next: 0, text: lane.place.querySelector(".text") }));
  for (const { text } of shown) text.replaceChildren();
  $("start").disabled = $("replay").disabled = !($("race-stop").disabled = false);
  const started = performance.now();
  const frame = () => {
    const now = stopper.signal.aborted ? Infinity : (performance.now() - started) / 1000;
    let left = false;
    for (const one of shown) {
      const { events, place } = one.lane;
      while (one.next < events.length && events[one.next].at <= now) {
        write(one.text, events[one.next].spans);
        place.querySelector(".pace").textContent = paceOf(one.lane, events[one.next++]);
      }
      if (one.next < events.length) left = true;
      else place.querySelector(".pace").textContent = finalPace(one.lane);
    }
    if (left) return requestAnimationFrame(frame);
    racing = null;
    $("start").disabled = $("replay").disabled = !($("race-stop").disabled = true);
  };
  frame();
}
