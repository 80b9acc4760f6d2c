// ServerSide: parts that move to servers that join, while workers push and pull.
#include <algorithm>
#include <utility>

#include "core/fail.hpp"
#include "server/message_kinds.hpp"
#include "server/parts/keyed_messages.hpp"
#include "server/parts/tensor_bytes.hpp"
#include "server/server_side.hpp"

namespace stretto {
namespace {

std::uint32_t plain_kind(const MessageHead& head) { return head.kind & ((1U << forwarded_shift) - 1); }

}  // namespace

void ServerSide::join() {
  const std::lock_guard lock(mutex_);
  const int self = live_.rank();
  require(!over_, "Server {} cannot join: it has served, and all workers have left; call join() before serve().", self);
  require(!joined_.contains(self), "Server {} has joined already.", self);
  for (int server = layout_.workers; server < layout_.ranks; ++server) {
    if (server != self) live_.send(server, {.kind = server_joins});
  }
  note_joined(self);
}

void ServerSide::note_joined(int server) {
  ring_.add(server);
  joined_.insert(server);
  if (live_.open_workers() == 0) return;  // nobody asks for parts any more
  for (auto& [key, copy] : copies_) {
    if (copy.part) move_part(key, copy);
  }
}

// If a server that has joined is the part's owner on the ring. The others keep what they were dealt.
void ServerSide::move_part(const PartKey& key, Copy& copy) {
  const int owner = ring_.owner(layout_.ring_key(key));
  if (owner == live_.rank() || !joined_.contains(owner)) return;
  if (!copy.moved) copy.moved.emplace();
  copy.moved->to = owner;
  ++copy.moves;
  copy.moved->told.assign(static_cast<std::size_t>(layout_.workers), false);
  copy.chain = {owner};
  const std::unique_ptr<ServedPart> part = std::move(copy.part);
  ServedPart::Waiting waiting = part->take_waiting();
  send(owner, key, {.kind = saved_part, .clock = copy.moves}, tensor_of(part->saved()));
  for (const ServedPart::Waiting::Push& push : waiting.pushes) {
    forward(push.worker, {.kind = push_part | is_decoded, .clock = push.clock}, packed(push.rows), key, copy);
  }
  for (const ServedPart::Pull& pull : waiting.pulls) {
    const std::uint32_t flags = pull.settled ? is_settled : 0;
    forward(pull.worker, {.kind = pull_part | flags, .clock = pull.clock, .request = pull.request},
            packed(KeyedRows{pull.keys, {}, pull.lengths}), key, copy);
  }
  for (int worker = 0; worker < layout_.workers; ++worker) {
    if (live_.is_open(worker)) {
      send(worker, key, {.kind = moved_part, .clock = owner, .request = static_cast<std::uint64_t>(copy.moves)});
    } else if (copy.moved->comes_directly.empty() || copy.moved->comes_directly[static_cast<std::size_t>(worker)]) {
      accept({worker, {.kind = goodbye}, {}}, key, copy);
    }
  }
}

void ServerSide::take_moved_part(const ReceivedMessage& message, const PartKey& key) {
  Copy& copy = copies_[key];
  copy.part = make_part(key);
  copy.part->load(bytes_in(message.bytes));
  copy.chain = {live_.rank()};
  copy.moves = message.head.clock;
  copy.acknowledged_to.resize(static_cast<std::size_t>(layout_.workers));
  if (!copy.moved) copy.moved.emplace();
  copy.moved->to.reset();
  copy.moved->comes_directly.resize(static_cast<std::size_t>(layout_.workers), false);
  copy.moved->held.resize(static_cast<std::size_t>(layout_.workers));
  if (live_.open_workers() > 0) move_part(key, copy);  // another server may have joined meanwhile
}

void ServerSide::take_moving(const ReceivedMessage& message, const PartKey& key, Copy& copy) {
  if (!copy.moved) copy.moved.emplace();
  Copy::Moved& moved = *copy.moved;
  const int forwarded = static_cast<int>(message.head.kind >> forwarded_shift);
  const int worker = forwarded > 0 ? forwarded - 1 : message.from;
  const auto w = static_cast<std::size_t>(worker);
  ReceivedMessage its{worker, message.head, message.bytes};
  its.head.kind = plain_kind(message.head);
  if (forwarded == 0 && layout_.is_spare(live_.rank())) {
    moved.comes_directly.resize(static_cast<std::size_t>(layout_.workers), false);
    moved.held.resize(static_cast<std::size_t>(layout_.workers));
    if (!moved.comes_directly[w]) return moved.held[w].push_back(std::move(its));
  }
  if (forwarded == 0 || its.head.kind != switched) return accept(its, key, copy);
  moved.comes_directly[w] = true;
  const std::deque<ReceivedMessage> held = std::exchange(moved.held[w], {});
  for (const ReceivedMessage& each : held) accept(each, key, copy);
  // handle_goodbye() knew no such part when the worker had left before.
  if (held.empty() && !live_.is_open(worker)) accept({worker, {.kind = goodbye}, {}}, key, copy);
}

// Takes a worker's messages one by one, in the order in which the worker sent them.
void ServerSide::accept(const ReceivedMessage& message, const PartKey& key, Copy& copy) {
  const std::uint32_t kind = message.head.kind;
  if (!copy.moved->to) {
    ensure(copy.part != nullptr && kind != switched,
           "Worker {} sends {} for part {} of table {}, which is not at server {}.", message.from, kind, key.second,
           key.first, live_.rank());
    if (kind == goodbye) {
      copy.part->leave(message.from);
    } else {
      take_from_worker(message, key, copy);
    }
    return advance(key, copy);
  }
  auto told = copy.moved->told.begin() + message.from;
  if (kind == goodbye && *told) return;  // the part's new server hears it from the worker
  if (kind == goodbye || kind == switched) {
    *told = true;
    return forward(message.from, {.kind = switched}, {}, key, copy);
  }
  forward(message.from, message.head, message.bytes, key, copy);
}

void ServerSide::forward(int worker, MessageHead head, const Tensor& bytes, const PartKey& key, const Copy& copy) {
  head.kind |= static_cast<std::uint32_t>(worker + 1) << forwarded_shift;
  send(*copy.moved->to, key, head, bytes);
}

// Workers have said all; other servers may still pass on some of it, each part's through as many of them as there are
// spares. A server answers what comes before it says the next round's word, so that in the last round nothing is under way.
void ServerSide::end_together() {
  const auto tell = [&](std::uint32_t kind) {
    for (int server = layout_.workers; server < layout_.ranks; ++server) {
      if (server != live_.rank()) live_.send(server, {.kind = kind});
    }
  };
  const auto others = static_cast<std::size_t>(layout_.ranks - layout_.workers - 1);
  for (int round = 1; round < layout_.options.spares; ++round) {
    tell(all_have_left);
    const auto has_said_so = [&](const auto& of_server) { return of_server.second >= round; };
    while (static_cast<std::size_t>(std::ranges::count_if(rounds_, has_said_so)) < others) handle_and_note(live_.receive());
  }
  tell(goodbye);
  while (live_.any_server_open()) handle_and_note(live_.receive());
}

}  // namespace stretto
