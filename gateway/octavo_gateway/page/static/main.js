import * as access from "/page/access.js";
import * as chat from "/page/chat.js";
import * as live from "/page/live.js";
import * as tabs from "/page/tabs.js";
import * as waterfall from "/page/waterfall.js";

for (const part of [tabs, access, waterfall, chat, live]) part.start();
