"use strict";
// buttons, keys and what is served

const tabs = ["chat", "race"];

function choose(name) {
  for (const other of tabs) {
    const chosen = other === name;
    $("tab-" + other).setAttribute("aria-selected", String(chosen));
    $("tab-" + other).tabIndex = chosen ? 0 : -1;
    $("panel-" + other).hidden = !chosen;
  }
}

for (const name of tabs) {
  $("tab-" + name).addEventListener("click", () => choose(name));
  $("tab-" + name).addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const other = tabs[1 - tabs.indexOf(name)];
    choose(other);
    $("tab-" + other).focus();
  });
}

const onSubmit = (form, act) =>
  $(form).addEventListener("submit", (event) => {
    event.preventDefault();
    act();
  });
onSubmit("chat-form", send);
onSubmit("race-form", race);
onSubmit("settings", findModel);
$("stop").addEventListener("click", () => answering?.abort());
$("race-stop").addEventListener("click", () => racing?.abort());
$("clear").addEventListener("click", clearChat);
$("replay").addEventListener("click", replay);
$("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  answering?.abort();
  racing?.abort();
});
$("tint").addEventListener("change", () => document.body.classList.toggle("tinted", $("tint").checked));
$("at-once").addEventListener("change", () => ($("at-once-note").hidden = !$("at-once").checked));
$("key").addEventListener("change", () => {
  sessionStorage.setItem(KEY, $("key").value);
  findModel();
});

async function findModel() {
  if (wantsKey && !sessionStorage.getItem(KEY)) {
    $("served").textContent = "This server wants an API key: enter it in the settings.";
    return;
  }
  try {
    const { id, meta } = (await (await ask("v1/models")).json()).data[0];
    const drafts = meta.draft_max > 0;
    $("served").textContent = id + ", context " + meta.n_ctx +
      (drafts ? "" : ". It has no draft: every answer is plain, and there is no race.");
    $("start").disabled = !drafts;
    $("at-once-label").hidden = meta.max_sequences < 2;
  } catch (error) {
    $("served").textContent = wordsOf(error);
  }
}

$("key-row").hidden = !wantsKey;
$("key").value = (wantsKey && sessionStorage.getItem(KEY)) || "";
// a narrow screen shows the conversation first
if (matchMedia("(max-width: 46rem)").matches) $("more").open = wantsKey && !$("key").value;
$("message").focus();
findModel();
