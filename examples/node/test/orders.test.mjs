import assert from 'node:assert/strict';
import { after, before, beforeEach, test } from 'node:test';
import kafkajs from 'kafkajs';
import { Kcoord } from '../kcoord.mjs';

const GROUP = { group: 'billing' };
const timeout = 60_000;

let kcoord;

// One server for the file: a reset takes milliseconds.
before(async () => {
  kcoord = await Kcoord.start();
});
after(() => kcoord?.stop());
beforeEach(() => kcoord.control('reset'));

test('orders are billed', { timeout }, async (t) => {
  await produce('order 1');
  const { consumer, next } = await join(t);
  assert.equal(await next(), 'order 1');
  await consumer.commitOffsets([{ topic: 'orders', partition: 0, offset: '1' }]);
  await kcoord.control('wait_committed', { ...GROUP, topic: 'orders', partition: 0, offset: 1 });
});

// The coordinator stores the offset, and the connection is closed before the client gets the answer.
test('a commit without an answer is repeated', { timeout }, async (t) => {
  await produce('order 1');
  const { consumer, next } = await join(t);
  await next();
  const rule = await kcoord.control('cut', { api: 'OffsetCommit', at: 'after', ...GROUP });
  await consumer.commitOffsets([{ topic: 'orders', partition: 0, offset: '1' }]);
  assert.equal((await kcoord.control('rule', { id: rule.id })).hits, 1);
  const requests = await kcoord.control('requests', { api: 'OffsetCommit', ...GROUP });
  assert.deepEqual(
    requests.map((one) => [one.is_handled, one.is_sent]),
    [
      [true, false],
      [true, true],
    ],
  );
  assert.deepEqual(await kcoord.control('committed', GROUP), [{ topic: 'orders', partition: 0, offset: 1 }]);
});

// The member learns from its next heartbeat that its session has ended. Nobody waits for a timeout.
test('a member comes back after its session has ended', { timeout }, async (t) => {
  await produce('order 1');
  const { consumer, next, member } = await join(t);
  await next();
  await consumer.commitOffsets([{ topic: 'orders', partition: 0, offset: '1' }]);
  const first = await member();
  await kcoord.control('expire_member', GROUP);
  const second = await member();
  assert.notEqual(second, first);
  await produce('order 2');
  assert.equal(await next(), 'order 2');
});

async function produce(value) {
  const producer = client().producer({ createPartitioner: kafkajs.Partitioners.DefaultPartitioner });
  await producer.connect();
  await producer.send({ topic: 'orders', messages: [{ value }] });
  await producer.disconnect();
}

function client() {
  return new kafkajs.Kafka({ brokers: [kcoord.bootstrap], logLevel: kafkajs.logLevel.NOTHING });
}

/** A member of the group that leaves when the test ends; only the test commits. `next` returns the next value. */
async function join(t) {
  const consumer = client().consumer({
    groupId: 'billing',
    heartbeatInterval: 100,
    // kafkajs sends heartbeats between two fetches.
    maxWaitTimeInMs: 100,
  });
  t.after(() => consumer.disconnect());
  const values = new Queue();
  const members = new Queue();
  consumer.on(consumer.events.GROUP_JOIN, (event) => members.put(event.payload.memberId));
  await consumer.connect();
  await consumer.subscribe({ topic: 'orders', fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ message }) => values.put(message.value.toString()),
  });
  return { consumer, next: () => values.get(), member: () => members.get() };
}

class Queue {
  #items = [];
  #waiting = [];

  put(item) {
    this.#items.push(item);
    this.#waiting.shift()?.();
  }

  async get() {
    while (this.#items.length === 0) {
      await new Promise((resolve) => this.#waiting.push(resolve));
    }
    return this.#items.shift();
  }
}
