#include "server/worker/worker_side.hpp"

#include <algorithm>
#include <utility>

#include "core/fail.hpp"
#include "core/split_mix.hpp"
#include "server/parts/keyed_messages.hpp"
#include "server/parts/tensor_bytes.hpp"
#include "stretto/device.hpp"

namespace stretto {
namespace {

// A worker that pushes and pulls sends each server at most so many bytes, or parts, for which it has no answer. Parts that
// it sends earlier than the other workers wait at the server, and delay theirs on the server's link. No worker waits for
// ever: all send a server's parts in the same order, and the server answers for the first one as soon as all have sent it.
// Two parts keep both directions of a link busy.
constexpr std::size_t most_unanswered_bytes = std::size_t{256} << 10;
constexpr std::size_t least_unanswered_parts = 2;

Tensor checked(const ServedTable& table, const Tensor& tensor) {
  require(tensor.size() == table.elements && tensor.dtype() == table.dtype && tensor.device() == Device::cpu,
          "Table {} has {} elements of {}, and the tensor {} of {}; give host memory of the table's size and type.",
          table.name, table.elements, name(table.dtype), tensor.size(), name(tensor.dtype()));
  return tensor.reshaped({tensor.size()});
}

void check(const ServedTable& table, const KeyedRows& keyed) {
  require(table.is_sparse(), "Table {} is dense, and has no keys; push or pull all of it.", table.name);
  check_keys(keyed.keys);
  const bool any_length = table.width == ServedTable::any_length;
  require(keyed.lengths.size() == (any_length ? keyed.keys.size() : 0),
          "{} keys of table {}, which has rows of {}, come with {} lengths; give one for each key if rows have any length, "
          "and none otherwise.",
          keyed.keys.size(), table.name, any_length ? "any length" : std::to_string(table.width), keyed.lengths.size());
  std::int64_t elements = any_length ? 0 : std::ssize(keyed.keys) * table.width;
  for (const std::int64_t length : keyed.lengths) {
    require(length > 0, "A key of table {} has a length of {}; give lengths from 1 on.", table.name, length);
    // Before the sum, which could overflow.
    require(
        length <= keyed.rows.size() - elements,
        "A key of table {} has a length of {}, and the tensor {} elements, {} of which are those of keys before it; give "
        "a tensor of all lengths together.",
        table.name, length, keyed.rows.size(), elements);
    elements += length;
  }
  const Tensor& rows = keyed.rows;
  require(rows.size() == elements && rows.dtype() == table.dtype && rows.device() == Device::cpu,
          "{} keys of table {} have {} elements of {}, and the tensor {} of {}; give host memory of that size and type.",
          keyed.keys.size(), table.name, elements, name(table.dtype), rows.size(), name(rows.dtype()));
}

// With `eventual`, a pull of an eventual table is like any other.
std::optional<Consistency> own_consistency(const ServedTable& table, MessageKind kind,
                                           const std::optional<Consistency>& consistency, const ServedLayout& layout) {
  if (!consistency) return std::nullopt;
  require(kind == pull_part, "A push to table {} comes with a consistency, which only pulls have; pull behind it.",
          table.name);
  require(consistency->kind != Consistency::Kind::exact,
          "A pull of table {} asks for an exact version, and servers keep these for tables that are exact; give the table "
          "that consistency, or the pull another.",
          table.name);
  require(consistency->delay >= 0, "A pull of table {} has a delay of {}; give one from 0 on.", table.name,
          consistency->delay);
  const auto is_eventual = [](const Consistency& of) { return of.kind == Consistency::Kind::eventual; };
  if (is_eventual(*consistency) && is_eventual(layout.consistency_of(table))) return std::nullopt;
  return consistency;
}

std::string sentence_of(const std::exception_ptr& thrown) {
  constexpr const char* none = "A filter of a push has thrown what has no sentence; see its code.";
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    return *error.what() == 0 ? none : error.what();
  } catch (...) {
    return none;
  }
}

}  // namespace

WorkerSide::WorkerSide(const ServedLayout& layout, LiveRanks& live)
    : layout_(layout),
      live_(live),
      tables_(layout.tables.size()),
      has_any_length_(std::ranges::any_of(layout.tables,
                                          [](const auto& table) { return table.served.width == ServedTable::any_length; })) {
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    const ServedLayout::Table& table = layout.tables[t];
    tables_[t].kept.resize(table.parts.size());
    tables_[t].applied.resize(table.parts.size());
    tables_[t].order = layout.sending_order(t, live.rank());
    const std::size_t part_bytes = static_cast<std::size_t>(table.parts.front().count) * size_of(table.served.dtype);
    tables_[t].most_unanswered =
        std::max(least_unanswered_parts, most_unanswered_bytes / std::max<std::size_t>(part_bytes, 1));
    for (std::size_t p = 0; p < table.parts.size() && !table.served.filters.empty(); ++p) {
      const std::uint64_t seed = split_mixed(static_cast<std::uint64_t>(live.rank()) << 48 | t << 32 | p);
      tables_[t].filters.emplace_back(table.served, table.parts[p].count, seed);
    }
  }
}

void WorkerSide::require_present(const char* what) const {
  require(!left_, "Rank {} cannot {}: it has left the servers.", live_.rank(), what);
}

std::uint64_t WorkerSide::add(int table, const Tensor* pushed, const Tensor* values, Terms terms) {
  const ServedLayout::Table& its = layout_.table(table);
  require(!its.served.is_sparse(), "Table {} is sparse; push and pull rows of keys.", its.served.name);
  const MessageKind kind = values == nullptr ? push_part : pushed == nullptr ? pull_part : push_and_pull_part;
  Request request{.kind = kind,
                  .table = static_cast<std::size_t>(table),
                  .after = std::move(terms.after),
                  .consistency = own_consistency(its.served, kind, terms.consistency, layout_)};
  if (pushed != nullptr) request.given.rows = checked(its.served, *pushed);
  if (values != nullptr) request.values = checked(its.served, *values);
  return hold(std::move(request));
}

std::uint64_t WorkerSide::add(int table, KeyedRows keyed, MessageKind kind, Terms terms) {
  const ServedLayout::Table& its = layout_.table(table);
  check(its.served, keyed);
  Request request{.kind = kind,
                  .table = static_cast<std::size_t>(table),
                  .after = std::move(terms.after),
                  .consistency = own_consistency(its.served, kind, terms.consistency, layout_),
                  .begins = keyed.begins()};
  if (kind == pull_part) request.values = std::exchange(keyed.rows, {});
  request.given = std::move(keyed);
  return hold(std::move(request));
}

int WorkerSide::server_of(std::size_t table, std::size_t part) const {
  const auto moved = moved_.find({table, part});
  if (moved != moved_.end()) return moved->second.rank;
  return layout_.chain(layout_.tables[table].parts[part], [&](int rank) { return live_.has(rank); }).front();
}

void WorkerSide::send_part(std::uint32_t kind, std::size_t table, std::size_t part, std::int64_t clock,
                           std::uint64_t request, const Tensor& bytes) {
  MessageHead head{.kind = kind,
                   .table = static_cast<std::uint32_t>(table),
                   .part = static_cast<std::int64_t>(part),
                   .clock = clock,
                   .request = request};
  const ServedTable& served = layout_.tables[table].served;
  Tensor shorter;
  if (served.key_cache && bytes) {
    const KeyRange keys = keys_in(bytes, served, kind != pull_part);
    shorter = sent_keys_.shortened({table, part}, bytes, keys.begin, keys.count);
    if (shorter) head.kind |= has_cached_keys;
  }
  live_.send(server_of(table, part), head, shorter ? shorter : bytes, served.priority);
}

void WorkerSide::send_part_of(std::uint64_t id, const Request& request, std::size_t part) {
  send_part(request.kind | request.flags(), request.table, part, request.clock, id, request.messages[part]);
}

void WorkerSide::send_unsent(std::optional<std::size_t> table) {
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    if (table && t != *table) continue;
    for (const std::uint64_t id : tables_[t].unanswered) {
      Request& request = requests_.at(id);
      for (const auto& [server, parts] : std::exchange(request.unsent, {})) {
        for (const std::size_t part : parts) send_part_of(id, request, part);
      }
    }
  }
}

void WorkerSide::throw_late_refusals() {
  const std::string refusals = std::exchange(late_refusals_, {});
  require(refusals.empty(), "{}", refusals);
}

void WorkerSide::when_done(std::uint64_t id, ServerSet::Done done) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) {
    finished_.push_back({next_request_++, std::move(done), {}});
  } else {
    require(!found->second.done, "A push or pull has a function to call when it is done already; give one.");
    found->second.done = std::move(done);
    with_functions_.insert(id);
  }
}

std::optional<WorkerSide::Finished> WorkerSide::next_finished(std::uint64_t before) {
  const auto done = std::ranges::find_if(with_functions_, [&](std::uint64_t id) { return id < before && is_done(id); });
  if (done != with_functions_.end()) conclude(*done);
  const auto found = std::ranges::find_if(finished_, [&](const Finished& each) { return each.request < before; });
  if (found == finished_.end()) return std::nullopt;
  Finished first = std::move(*found);
  finished_.erase(found);
  return first;
}

void WorkerSide::poll() {
  while (const std::optional<ReceivedMessage> message = live_.try_receive()) {
    take(*message);
    begin_what_may();
  }
  begin_what_may();  // a push may have left without a message
  forget_sent();
  throw_late_refusals();
}

// The request is done before a refusal of another one is thrown: no answer may be written to the caller's tensor later.
void WorkerSide::wait(std::uint64_t id) {
  if (requests_.contains(id)) {
    const Outcome outcome = finish(id);
    if (outcome.thrown) throw ThrownByFilter{outcome.thrown};
    require(outcome.refusals.empty(), "{}", outcome.refusals);
    take_acknowledgements();
  }
  throw_late_refusals();
}

// After a loss it is called again, and asks all that are left: one of them may have what another has answered for.
std::vector<std::string> WorkerSide::ask(const std::string& text) {
  begin_what_may();
  send_unsent();
  answers_.clear();
  question_ = next_request_++;
  std::size_t asked = 0;
  for (int server = layout_.workers; server < layout_.ranks; ++server) {
    live_.send(server, {.kind = question_of_worker, .request = question_}, tensor_of(text));
    asked += live_.has(server) ? 1 : 0;
  }
  while (answers_.size() < asked) {
    take(live_.receive());
    begin_what_may();
  }
  std::vector<std::string> result;
  for (auto& [server, answer] : answers_) {
    require(!answer.is_refusal, "{}", answer.text);
    result.push_back(std::move(answer.text));
  }
  return result;
}

std::int64_t WorkerSide::version(int table) const {
  layout_.table(table);
  return tables_[static_cast<std::size_t>(table)].version;
}

// Stuck pushes have no others behind them but those of which the servers have not told yet.
bool WorkerSide::awaits_applied() const {
  return std::ranges::any_of(tables_, [](const TableState& table) {
    return std::ranges::any_of(table.kept, [](const auto& pushes) {
      return !pushes.empty() && !(pushes.front().is_stuck && pushes.back().is_stuck);
    });
  });
}

void WorkerSide::say_goodbye() {
  said_goodbye_ = true;
  for (int server = layout_.workers; server < layout_.ranks; ++server) live_.send(server, {.kind = goodbye});
}

void WorkerSide::finish_all() {
  while (!requests_.empty()) {
    const Outcome outcome = finish(requests_.begin()->first);
    add_line(late_refusals_, outcome.thrown ? sentence_of(outcome.thrown) : outcome.refusals);
  }
}

void WorkerSide::leave() {
  while (awaits_applied()) take(live_.receive());
  throw_late_refusals();
  if (!said_goodbye_) say_goodbye();
  live_.send_all();
  const auto serves = [&](int rank) { return layout_.is_server(rank) && live_.is_open(rank); };
  for (int server = layout_.workers; server < layout_.ranks && (layout_.goes_on() || layout_.options.spares > 0); ++server) {
    while (serves(server)) take(live_.receive());
  }
}

void WorkerSide::resume() {
  sent_keys_ = {};
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    for (std::size_t p = 0; p < tables_[t].kept.size(); ++p) {
      for (KeptPush& push : tables_[t].kept[p]) {
        push.awaits_word = push.message && layout_.tables[t].served.width == ServedTable::any_length;
        send_part(push_part, t, p, push.clock, push.request, push.message);
      }
    }
  }
  for (auto& [id, request] : requests_) {
    request.unsent.clear();
    if (request.begun && request.kind != pull_part) leaving_.push_back(id);
    if (!request.begun || request.kind == push_part) continue;  // a push comes from `kept`
    for (const std::size_t p : request.missing) {
      // The pull of a push that pulls is at the clock behind the push, and has no bytes.
      const bool pushes = request.kind == push_and_pull_part;
      send_part(pull_part | request.flags(), request.table, p, request.clock + (pushes ? 1 : 0), id,
                pushes ? Tensor() : request.messages[p]);
    }
  }
  if (said_goodbye_) say_goodbye();
}

}  // namespace stretto
