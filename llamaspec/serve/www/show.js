"use strict";
// what came, on the page: always as text, never as HTML

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

// what a chunk says, as stretches that were proposed and accepted, and others
function spansOf(chunk) {
  const said = chunk.choices[0]?.delta.content;
  return chunk.llamaspec?.spans ?? (said ? [{ text: said, accepted: false }] : []);
}

function write(place, spans) {
  const scrolls = scrollerOf(place);
  const follows = scrolls.scrollHeight - scrolls.scrollTop - scrolls.clientHeight < 40;
  for (const { text, accepted } of spans) {
    const kind = accepted ? "accepted" : "own";
    const last = place.lastElementChild;
    if (last?.className === kind) last.firstChild.appendData(text);
    else place.append(element("span", text, kind));
  }
  if (follows) scrolls.scrollTop = scrolls.scrollHeight;
}

function scrollerOf(place) {
  return place.closest("#log") ?? place;
}

const number = (value, digits) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

// the figures of an answer: its last chunk has them
function showFigures(place, { timings, llamaspec }) {
  const list = element("dl");
  const row = (name, value) => list.append(element("dt", name), element("dd", value));
  row("tokens", String(timings.predicted_n));
  row("tokens/s", number(timings.predicted_per_second, 1));
  row("prompt", timings.prompt_n + " tokens computed, " + timings.cache_n + " cached");
  if (timings.draft_rounds) {
    // the first token comes from the prompt, not from a round
    row("tau", number((timings.predicted_n - 1) / timings.draft_rounds, 2) + " tokens a round");
    row("accept rate", timings.draft_n
      ? percent(timings.draft_n_accepted / timings.draft_n) +
        " (" + timings.draft_n_accepted + " of " + timings.draft_n + " proposals)"
      : "nothing was drafted: it did not pay");
  }
  place.replaceChildren(list);
  const rates = llamaspec?.accept_by_position ?? [];
  if (rates.length) place.append(element("h3", "Accepted, by place in the draft"), barsOf(rates));
}

function barsOf(rates) {
  const bars = element("ol", undefined, "bars");
  rates.forEach((rate, index) => {
    const bar = element("div", undefined, "bar");
    bar.style.width = 100 * rate + "%";
    const track = element("div", undefined, "track");
    track.append(bar);
    const item = element("li");
    item.append(element("span", String(index + 1)), track, element("span", percent(rate)));
    bars.append(item);
  });
  return bars;
}

const percent = (rate) => number(100 * rate, 0) + "%";
