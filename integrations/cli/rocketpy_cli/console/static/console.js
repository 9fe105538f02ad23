// Refreshes the elements with the attribute data-live. Without this script, a page shows the state at its load.
"use strict";

const live = document.getElementById("live");
const parts = [...document.querySelectorAll("[data-live]")].map((part) => part.id);

async function refresh() {
  if (!live.checked || document.hidden) return;
  const response = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!response.ok) return;
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  for (const id of parts) {
    const old = document.getElementById(id);
    const next = page.getElementById(id);
    // A part with the keyboard focus is not replaced, so that the focus is not lost.
    if (next && !old.contains(document.activeElement)) old.replaceWith(document.importNode(next, true));
  }
}

if (parts.length > 0) {
  live.closest("label").hidden = false;
  setInterval(() => refresh().catch(() => {}), Number(live.dataset.seconds) * 1000);
}
