// WorkerSide: when pushes and pulls begin, and when they are done.
#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "core/fail.hpp"
#include "server/parts/keyed_messages.hpp"
#include "server/parts/push_clocks.hpp"
#include "server/worker/worker_side.hpp"

namespace stretto {

std::uint64_t WorkerSide::hold(Request request) {
  const std::uint64_t id = next_request_++;
  tables_[request.table].held.push_back(id);
  requests_.emplace(id, std::move(request));
  return id;
}

bool WorkerSide::has_held() const {
  return std::ranges::any_of(tables_, [](const TableState& table) { return !table.held.empty(); });
}

// If ranks go on after losses, a loss sends open pulls again, and they must not come behind a later push.
bool WorkerSide::may_begin(const Request& request) const {
  if (!std::ranges::all_of(request.after, [&](std::uint64_t id) { return is_done(id); })) return false;
  if (!layout_.goes_on() || request.kind == pull_part) return true;
  return tables_[request.table].unanswered.empty();
}

// A message of one may be all that another one waits for.
void WorkerSide::begin_what_may() {
  for (bool any = true; any;) {
    any = false;
    for (TableState& table : tables_) {
      for (; !table.held.empty() && may_begin(requests_.at(table.held.front())); any = true) begin_first_of(table);
    }
  }
}

// A filter may throw: the push is then not made, and the call to push() throws it, or wait() if push() has returned.
void WorkerSide::begin_first_of(TableState& table) {
  const std::uint64_t id = table.held.front();
  table.held.pop_front();
  Request& request = requests_.at(id);
  try {
    for (const std::uint64_t earlier : request.after) {
      const auto found = requests_.find(earlier);
      if (found != requests_.end()) show(earlier, found->second);
    }
    divide(request);
    encode(request);
  } catch (...) {
    if (!request.begins_later) {
      requests_.erase(id);
      throw ThrownByFilter{std::current_exception()};
    }
    request.thrown = std::current_exception();
    request.missing.clear();
    request.begun = true;
    return;
  }
  count(id, request);
  request.begun = true;
  send(id, request);
}

// A push goes to all parts, without keys too, since each of them counts clocks.
void WorkerSide::divide(Request& request) const {
  const ServedLayout::Table& its = layout_.tables[request.table];
  KeyedRows given = std::exchange(request.given, {});
  if (!its.served.is_sparse()) {
    const Tensor from = given.rows && layout_.goes_on() ? given.rows.clone() : given.rows;
    for (const ServedLayout::Part& part : its.parts) {
      request.messages.push_back(from ? from.view(part.first, {part.count}) : Tensor());
      if (request.values) request.missing.insert(request.missing.size());
    }
    return;
  }
  request.places.resize(its.parts.size());
  for (std::size_t i = 0; i < given.keys.size(); ++i) {
    request.places[static_cast<std::size_t>(its.part_of(given.keys[i]))].push_back(static_cast<std::int64_t>(i));
  }
  for (std::size_t p = 0; p < its.parts.size(); ++p) {
    request.messages.push_back(packed(given, request.places[p], request.begins));
    const bool is_answered = request.kind == pull_part || its.served.width == ServedTable::any_length;
    if (is_answered && !request.places[p].empty()) request.missing.insert(p);
  }
}

void WorkerSide::encode(Request& request) {
  std::vector<FilterChain>& filters = tables_[request.table].filters;
  for (std::size_t p = 0; p < filters.size() && request.kind != pull_part; ++p) {
    const ServedTable& served = layout_.tables[request.table].served;
    request.messages[p] = filters[p].encoded(unpacked(request.messages[p], served, true));
  }
}

void WorkerSide::count(std::uint64_t id, Request& request) {
  TableState& table = tables_[request.table];
  request.clock = request.consistency ? least_version(*request.consistency, table.clock) : table.clock;
  if (request.kind == pull_part) return;
  ++table.clock;
  for (std::size_t p = 0; p < request.messages.size() && layout_.goes_on(); ++p) {
    const bool awaits_word = request.kind == push_part && request.missing.contains(p);
    table.kept[p].push_back({request.clock, id, request.messages[p], awaits_word});
  }
}

void WorkerSide::send(std::uint64_t id, Request& request) {
  send_unsent(request.table);  // a part gets a worker's messages in the order of its calls
  TableState& table = tables_[request.table];
  if (request.kind != push_part && !request.missing.empty()) table.unanswered.insert(id);
  std::map<int, std::size_t> sent;
  for (const std::size_t p : table.order) {
    if (request.kind == pull_part && !request.missing.contains(p)) continue;
    const int server = layout_.tables[request.table].parts[p].servers.front();
    if (request.kind == push_and_pull_part && sent[server]++ >= table.most_unanswered) {
      request.unsent[server].push_back(p);
    } else {
      send_part_of(id, request, p);
    }
  }
  if (request.kind != push_part) return;
  request.messages.clear();  // it comes again from `kept`
  request.places = {};
  request.begins = {};
  leaving_.push_back(id);  // the last word may come before a part without keys, which gets none, has left
}

// Returns in a push that waits for more than earlier pulls of its table; it then begins in another call.
void WorkerSide::begin(std::uint64_t id) {
  begin_what_may();
  while (true) {
    const auto found = requests_.find(id);
    if (found == requests_.end() || found->second.begun) break;
    Request& request = found->second;
    if (!request.after.empty() || tables_[request.table].held.front() != id) {
      request.begins_later = true;
      break;
    }
    take_next();
    begin_what_may();
  }
  take_acknowledgements();
}

bool WorkerSide::has_left(std::uint64_t id, const Request& request) const {
  return request.begun && (request.kind == pull_part || live_.has_sent(id));
}

bool WorkerSide::is_done(std::uint64_t id) const {
  const auto found = requests_.find(id);
  return found == requests_.end() || (found->second.missing.empty() && has_left(id, found->second));
}

void WorkerSide::forget_sent() {
  std::erase_if(leaving_, [&](std::uint64_t id) { return live_.has_sent(id); });
}

// Blocks until a message has come, or a push for which no message comes has left.
void WorkerSide::take_next() {
  forget_sent();
  const std::optional<ReceivedMessage> message = live_.receive_unless(
      [&] { return std::ranges::any_of(leaving_, [&](std::uint64_t id) { return live_.has_sent(id); }); });
  if (message) take(*message);
}

WorkerSide::Outcome WorkerSide::finish(std::uint64_t id) {
  for (begin_what_may(); !is_done(id); begin_what_may()) take_next();
  return conclude(id);
}

WorkerSide::Outcome WorkerSide::conclude(std::uint64_t id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return {};
  Request& request = found->second;
  try {
    show(id, request);
  } catch (...) {
    request.thrown = std::current_exception();
  }
  Outcome outcome{std::move(request.refusals), request.thrown};
  if (request.done) finished_.push_back({id, std::move(request.done), outcome});
  with_functions_.erase(id);
  requests_.erase(found);
  return outcome;
}

// Filters may depend on what the worker has read. Behind a later pull, an earlier one shows nothing.
void WorkerSide::show(std::uint64_t id, Request& request) {
  if (!request.values || !request.refusals.empty() || request.thrown || std::exchange(request.is_shown, true)) return;
  TableState& state = tables_[request.table];
  if (id < state.last_shown) return;
  state.last_shown = id;
  if (request.version != Request::no_version) state.version = request.version;
  const ServedLayout::Table& table = layout_.tables[request.table];
  std::vector<FilterChain>& filters = state.filters;
  for (std::size_t p = 0; p < filters.size(); ++p) {
    if (!table.served.is_sparse()) {
      filters[p].see_pulled({}, request.values.view(table.parts[p].first, {table.parts[p].count}));
      continue;
    }
    const std::vector<std::int64_t>& places = request.places[p];
    const Tensor rows({std::ssize(places), table.served.width}, table.served.dtype);
    for (std::int64_t i = 0; i < std::ssize(places); ++i) {
      rows.view(i * table.served.width, {table.served.width})
          .copy_from(request.values.view(places[static_cast<std::size_t>(i)] * table.served.width, {table.served.width}));
    }
    filters[p].see_pulled(unpacked(request.messages[p], table.served, false).keys, rows);
  }
}

}  // namespace stretto
