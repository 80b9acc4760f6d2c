// WorkerSide: what servers send to a worker.
#include <fmt/format.h>
#include <algorithm>

#include <cstring>
#include <utility>
#include <vector>

#include "core/fail.hpp"
#include "server/parts/tensor_bytes.hpp"
#include "server/worker/worker_side.hpp"

namespace stretto {

void WorkerSide::take(const ReceivedMessage& message) {
  if (message.head.kind == goodbye) {
    over_ = true;
    return live_.close(message.from);
  }
  if (message.head.kind == values_of_part) return take_values(message);
  if (message.head.kind == moved_part) return take_move(message);
  if (message.head.kind == answer_of_server || message.head.kind == refused_question) {
    const bool is_refusal = message.head.kind == refused_question;
    if (message.head.request == question_) answers_[message.from] = {text_in(message.bytes), is_refusal};
    return;
  }
  if (message.head.kind == accepted_push || message.head.kind == refused_request) return take_word(message);
  if (message.head.kind == stuck_pushes) return take_stuck(message);
  ensure(message.head.kind == applied_pushes, "Rank {} sends a message of kind {}.", message.from, message.head.kind);
  take_applied(message);
}

// Servers may say the same of several parts, or again behind a loss: equal lines are one.
void WorkerSide::add_line(std::string& refusals, const std::string& sentence) {
  if (sentence.empty() || fmt::format("\n{}\n", refusals).find(fmt::format("\n{}\n", sentence)) != std::string::npos) return;
  if (!refusals.empty()) refusals += '\n';
  refusals += sentence;
}

// A push that has come again behind a loss gets a word again.
void WorkerSide::take_word(const ReceivedMessage& message) {
  const auto part = static_cast<std::size_t>(message.head.part);
  const auto found = requests_.find(message.head.request);
  const bool is_open = found != requests_.end();
  if (is_open) take_answer(found->first, found->second, part);
  for (KeptPush& push : tables_.at(message.head.table).kept.at(part)) {
    if (push.request == message.head.request) push.awaits_word = false;
  }
  if (message.head.kind == refused_request) take_refusal(message, is_open ? found->second.refusals : late_refusals_);
  drop_applied(message.head.table, part);
}

// Another server must count the push as this one has. Servers keep the refusal until it comes as what it counted as.
void WorkerSide::take_refusal(const ReceivedMessage& message, std::string& refusals) {
  const auto part = static_cast<std::size_t>(message.head.part);
  add_line(refusals, text_in(message.bytes));
  if (!layout_.tables.at(message.head.table).served.is_sparse()) return;  // of a push that pulls: its push was taken
  for (KeptPush& push : tables_.at(message.head.table).kept.at(part)) {
    if (push.request != message.head.request) continue;
    push.message = {};
    send_part(push_part, message.head.table, part, push.clock, push.request, {});
    leaving_.push_back(push.request);
  }
}

void WorkerSide::take_applied(const ReceivedMessage& message) {
  const auto part = static_cast<std::size_t>(message.head.part);
  std::int64_t& applied = tables_.at(message.head.table).applied.at(part);
  applied = std::max(applied, message.head.clock);
  drop_applied(message.head.table, part);
}

// Behind a loss a push may be applied before the word on it comes: one that was refused, as one without keys. If the server
// is lost then, the next one must get the push again to say its word.
void WorkerSide::drop_applied(std::size_t table, std::size_t part) {
  TableState& its = tables_[table];
  std::deque<KeptPush>& kept = its.kept[part];
  while (!kept.empty() && kept.front().clock < its.applied[part] && !kept.front().awaits_word) kept.pop_front();
}

// All parts have the same clocks, and the caller is told of each push once, also if another server tells of it behind a
// loss. The pushes stay, since they are applied if the worker that has left is lost.
void WorkerSide::take_stuck(const ReceivedMessage& message) {
  TableState& table = tables_.at(message.head.table);
  const std::int64_t told = table.told_stuck;
  for (KeptPush& push : table.kept.at(static_cast<std::size_t>(message.head.part))) {
    push.is_stuck = push.clock >= message.head.clock;
    if (push.is_stuck) table.told_stuck = std::max(table.told_stuck, push.clock + 1);
  }
  if (table.told_stuck > told) add_line(late_refusals_, text_in(message.bytes));
}

// Servers may tell of two moves in another order than they were.
void WorkerSide::take_move(const ReceivedMessage& message) {
  NewServer& server = moved_[{message.head.table, static_cast<std::size_t>(message.head.part)}];
  if (message.head.request > server.moves) server = {static_cast<int>(message.head.clock), message.head.request};
  if (!said_goodbye_) live_.send(message.from, {.kind = switched, .table = message.head.table, .part = message.head.part});
}

void WorkerSide::take_values(const ReceivedMessage& message) {
  const auto found = requests_.find(message.head.request);
  const auto part = static_cast<std::size_t>(message.head.part);
  ensure(found != requests_.end() && found->second.missing.contains(part), "Rank {} answers request {}, which is not open.",
         message.from, message.head.request);
  Request& request = found->second;
  const ServedLayout::Table& table = layout_.tables[request.table];
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;  // of `values`: elements from .. to
  if (table.served.is_sparse()) {
    for (const std::int64_t place : request.places[part]) {
      const auto at = static_cast<std::size_t>(place);
      ranges.emplace_back(request.begins[at], request.begins[at + 1]);
    }
  } else {
    ranges.emplace_back(table.parts[part].first, table.parts[part].first + table.parts[part].count);
  }
  const std::size_t element = size_of(table.served.dtype);
  std::size_t bytes = 0;
  for (const auto& [begin, end] : ranges) bytes += static_cast<std::size_t>(end - begin) * element;
  ensure(message.head.bytes == bytes, "Part {} came with {} bytes instead of {}.", part, message.head.bytes, bytes);
  const auto* from = static_cast<const std::byte*>(message.bytes.raw());
  for (const auto& [begin, end] : ranges) {
    const std::size_t row = static_cast<std::size_t>(end - begin) * element;
    std::memcpy(static_cast<std::byte*>(request.values.raw()) + static_cast<std::size_t>(begin) * element, from, row);
    from += row;
  }
  request.version = std::min(request.version, message.head.clock);
  take_answer(found->first, request, part);
}

// The part's server gets the next one.
void WorkerSide::take_answer(std::uint64_t id, Request& request, std::size_t part) {
  if (request.missing.erase(part) == 0) return;
  if (request.missing.empty()) tables_[request.table].unanswered.erase(id);
  const auto unsent = request.unsent.find(layout_.tables[request.table].parts[part].servers.front());
  if (unsent == request.unsent.end() || unsent->second.empty()) return;
  const std::size_t next = unsent->second.front();
  unsent->second.pop_front();
  send_part_of(id, request, next);
}

void WorkerSide::take_what_has_come() {
  try {
    while (const std::optional<ReceivedMessage> message = live_.try_receive()) take(*message);
  } catch (const Error& error) {
    if (!error.is_of_another_rank()) throw;
  }
}

// Takes what has come without waiting. A worker that only pushes learns of a loss here, and servers would keep what they
// send to it until it waits.
void WorkerSide::take_acknowledgements() {
  while (awaits_applied() || layout_.options.spares > 0 || has_any_length_ || has_held()) {
    const std::optional<ReceivedMessage> message = live_.try_receive();
    if (!message) break;
    take(*message);
  }
  begin_what_may();
  forget_sent();
}

}  // namespace stretto
