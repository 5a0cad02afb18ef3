// A service with `POST /login`. Prints its port.
const express = require("express");

const app = express();
app.post("/login", (_, response) => response.send("login"));
const server = app.listen(0, "127.0.0.1", () => console.log(server.address().port));
