// Puts what the server sends in the place of what has changed. Without this, reloading a page does the same.
"use strict";

const told = document.getElementById("live");

function say(text, kind) {
  if (told.textContent !== text) {
    told.textContent = text;
    told.className = kind;
  }
}

// What the keyboard is at stays there, although its element is another one now.
function replace(old, html) {
  const focused = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const scrolled = Array.from(old.querySelectorAll(".wide"), (part) => part.scrollLeft);
  const holder = document.createElement("template");
  holder.innerHTML = html;
  const fresh = holder.content.firstElementChild;
  old.replaceWith(fresh);
  fresh.querySelectorAll(".wide").forEach((part, at) => { part.scrollLeft = scrolled[at] || 0; });
  if (focused !== null) {
    const again = Array.from(fresh.querySelectorAll("a")).find((link) => link.getAttribute("href") === focused);
    if (again) {
      again.focus({ preventScroll: true });
    }
  }
}

const page = encodeURIComponent(location.pathname + location.search);
const events = new EventSource("/events?page=" + page + "&shown=" + document.body.dataset.shown);
events.onopen = () => say("live", "good");
events.onerror = () => say("connection lost, trying again", "bad");
events.onmessage = (message) => {
  for (const [id, html] of Object.entries(JSON.parse(message.data))) {
    const old = document.getElementById(id);
    if (old && old.outerHTML !== html) {
      replace(old, html);
    }
  }
};
