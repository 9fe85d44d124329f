// Starts a kcoord server for tests, and calls its controls.
//
// Copy this file. It needs the command kcoord and Node.js 20.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';

const START_MS = 60_000;
const STOP_MS = 10_000;

/** A running server, with its log in memory. */
export class Kcoord {
  #url;
  #token;
  #process;

  /** Uses a server that runs elsewhere, such as in a container. `stop` does nothing to it. */
  constructor(bootstrap, controlUrl, token, process = null) {
    /** The address for clients, such as 127.0.0.1:34895. */
    this.bootstrap = bootstrap;
    this.#url = controlUrl;
    this.#token = token;
    this.#process = process;
  }

  /**
   * Runs the command in $KCOORD, or kcoord from $PATH, until it accepts connections.
   * Further arguments go to `kcoord serve`, such as '--set', 'num.partitions=3'.
   */
  static async start(...args) {
    const command = process.env.KCOORD || 'kcoord';
    const serve = ['serve', '--profile', 'test', '--control', '127.0.0.1:0', '--exit-with-parent'];
    const server = spawn(command, [...serve, ...args], { stdio: ['ignore', 'pipe', 'inherit'] });
    const ended = once(server, 'close');
    // A server that does not become ready is ended, and then its output ends as well.
    const timer = setTimeout(() => server.kill('SIGKILL'), START_MS);
    try {
      let url, token;
      for await (const line of createInterface(server.stdout)) {
        const words = line.split(' ');
        if (line.startsWith('kcoord control ')) {
          [, , url, token] = words;
        } else if (line.startsWith('kcoord ready ')) {
          return new Kcoord(words[2], url, token, server);
        }
      }
    } finally {
      clearTimeout(timer);
    }
    const [code] = await ended;
    throw new Error(`kcoord did not start: exit code ${code}`);
  }

  /** Calls an operation, such as 'wait_stable'. A wait that fails throws what the server has seen. */
  async control(operation, args = {}) {
    const response = await fetch(`${this.#url}/v1/${operation}`, {
      method: 'POST',
      headers: { Authorization: `Bearer ${this.#token}` },
      body: JSON.stringify(args),
    });
    const answer = await response.json();
    if (!response.ok) {
      throw new Error(`kcoord: ${operation}: ${response.status} ${answer.error}`);
    }
    return answer.result;
  }

  async stop() {
    const server = this.#process;
    if (server === null || server.exitCode !== null || server.signalCode !== null) {
      return;
    }
    const ended = once(server, 'exit');
    const timer = setTimeout(() => server.kill('SIGKILL'), STOP_MS);
    server.kill('SIGTERM');
    await ended;
    clearTimeout(timer);
  }
}
