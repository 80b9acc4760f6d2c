#include "server/server_side.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/fail.hpp"
#include "server/message_kinds.hpp"
#include "server/parts/keyed_messages.hpp"
#include "server/parts/tensor_bytes.hpp"

namespace stretto {
namespace {

MessageHead refusal_head(int worker, std::int64_t clock) {
  return {.kind = refused_push, .clock = clock, .request = static_cast<std::uint64_t>(worker)};
}

std::string refusal_of(const ServedPart::Pull& pull, std::int64_t needed, const PushClocks::Left& left,
                       const std::string& table) {
  return fmt::format(
      "Worker {} has left the servers after {} pushes of table {}, and the pull of worker {}{} waits for {} of all workers: "
      "all must push a table equally often.",
      left.worker, left.pushes, table, pull.worker, pull.settled ? "" : fmt::format(" at clock {}", pull.clock), needed);
}

std::string refusal_of_pushes(int worker, const PushClocks::Left& left, const std::string& table) {
  return fmt::format(
      "Worker {} has left the servers after {} pushes of table {}, and those of worker {} behind them are not applied: all "
      "must push a table equally often.",
      left.worker, left.pushes, table, worker);
}

}  // namespace

ServerSide::ServerSide(const ServedLayout& layout, LiveRanks& live)
    : layout_(layout), live_(live), ring_(layout.options.points) {
  for (int server = layout.workers; server < layout.ranks; ++server) {
    if (!layout.is_spare(server)) ring_.add(server);
  }
  for (std::size_t t = 0; t < layout.tables.size(); ++t) {
    for (std::size_t p = 0; p < layout.tables[t].parts.size(); ++p) {
      Copy copy;
      link({t, p}, copy);
      if (copy.acknowledged_to.empty()) continue;
      copy.part = make_part({t, p});
      copies_.emplace(PartKey{t, p}, std::move(copy));
    }
  }
}

std::unique_ptr<ServedPart> ServerSide::make_part(const PartKey& key) const {
  const ServedLayout::Table& table = layout_.tables[key.first];
  const ServedLayout::Part& part = table.parts[key.second];
  return make_served_part(table.served, part.first, part.count, layout_.workers, layout_.consistency_of(table.served),
                          layout_.goes_on());
}

// Finds this server's place in the chain. Without a place, acknowledged_to stays empty.
void ServerSide::link(const PartKey& key, Copy& copy) const {
  const std::vector<int> chain =
      layout_.chain(layout_.tables[key.first].parts[key.second], [&](int rank) { return live_.has(rank); });
  const auto place = std::ranges::find(chain, live_.rank());
  copy.chain = chain;
  copy.before = copy.behind = std::nullopt;
  copy.acknowledged_to.clear();
  if (place == chain.end()) return;
  if (place != chain.begin()) copy.before = *std::prev(place);
  if (std::next(place) != chain.end()) copy.behind = *std::next(place);
  copy.acknowledged_to.resize(static_cast<std::size_t>(layout_.workers));
}

void ServerSide::send(int to, const PartKey& key, MessageHead head, const Tensor& bytes) {
  head.table = static_cast<std::uint32_t>(key.first);
  head.part = static_cast<std::int64_t>(key.second);
  live_.send(to, head, bytes, layout_.tables[key.first].served.priority);
}

// The worker throws the sentence, and everybody is served on.
void ServerSide::refuse(int worker, const PartKey& key, std::uint64_t request, const std::string& sentence) {
  send(worker, key, {.kind = refused_request, .request = request}, tensor_of(sentence));
}

// All updates behind the part's version follow: see advance().
void ServerSide::give_part_behind(const PartKey& key, Copy& copy) {
  copy.passed_on = copy.part->version();
  if (!copy.behind) return;
  if (std::exchange(copy.behind_lacks_part, false)) {
    return send(*copy.behind, key, {.kind = saved_part}, tensor_of(copy.part->saved()));
  }
  for (const auto& [push, sentence] : copy.part->refusals()) {
    send(*copy.behind, key, refusal_head(push.first, push.second), tensor_of(sentence));
  }
}

int ServerSide::server_of(const PartKey& key) const {
  const int owner = ring_.owner(layout_.ring_key(key));
  if (joined_.contains(owner)) return owner;
  return layout_.chain(layout_.tables[key.first].parts[key.second], [&](int rank) { return live_.has(rank); }).front();
}

bool ServerSide::serves(const PartKey& key) const {
  const auto found = copies_.find(key);
  return found != copies_.end() && found->second.part && !found->second.before;
}

void ServerSide::serve(const ServerSet::Answer& answer) {
  answer_ = answer;
  while (live_.open_workers() > 0) handle_and_note(live_.receive());
  end();
}

void ServerSide::take_what_has_come() {
  try {
    while (const std::optional<ReceivedMessage> message = live_.try_receive()) handle_and_note(*message);
  } catch (const Error& error) {
    if (!error.is_of_another_rank()) throw;
  }
  if (live_.open_workers() == 0) end();
}

// The lock is not held: an answer changes nothing that state() reads, and may take long.
void ServerSide::answer_questions() {
  const auto is_here = [](const auto& each) { return each.second.part || (each.second.moved && each.second.moved->to); };
  for (; !questions_.empty() && std::ranges::all_of(copies_, is_here); questions_.pop_front()) {
    const ReceivedMessage& question = questions_.front();
    if (answer_ == nullptr) {
      live_.send(question.from, {.kind = refused_question, .request = question.head.request},
                 tensor_of(fmt::format("Worker {} asks server {}, whose serve() was given no answer; give all servers one.",
                                       question.from, live_.rank())));
      continue;
    }
    ServerSet::Question asked{.text = text_in(question.bytes), .server = 0, .parts = {}};
    for (int server = layout_.workers; server < live_.rank(); ++server) asked.server += live_.has(server) ? 1 : 0;
    for (const auto& [key, copy] : copies_) {
      const ServedLayout::Table& table = layout_.tables[key.first];
      if (!copy.part || table.served.is_sparse()) continue;
      asked.parts.push_back({.table = static_cast<int>(key.first),
                             .first = table.parts[key.second].first,
                             .values = copy.part->values(),
                             .state = copy.part->state(),
                             .updates = copy.part->version(),
                             .is_copy = copy.before.has_value()});
    }
    live_.send(question.from, {.kind = answer_of_server, .request = question.head.request}, tensor_of(answer_(asked)));
  }
}

void ServerSide::handle_and_note(const ReceivedMessage& message) {
  if (message.head.kind == question_of_worker) {
    questions_.push_back(message);
  } else {
    const std::lock_guard lock(mutex_);
    handle(message);
  }
  answer_questions();
  const std::lock_guard lock(mutex_);
  traffic_ = live_.traffic();
  queue_ = live_.queue();
}

// Rank 0, without which no others can meet, hears last that it may end: the others' messages have left then.
void ServerSide::end() {
  if (layout_.options.spares > 0) end_together();
  over_ = true;
  if (layout_.goes_on() || layout_.options.spares > 0) {
    for (int worker = layout_.workers; worker-- > 0;) live_.send(worker, {.kind = goodbye});
  }
  if (layout_.options.copies > 0) {
    for (int server = layout_.workers; server < layout_.ranks; ++server) {
      if (server != live_.rank()) live_.send(server, {.kind = goodbye});
    }
  }
  live_.send_all();
}

void ServerSide::handle(const ReceivedMessage& message) {
  if (message.head.kind == goodbye) return handle_goodbye(message.from);
  if (message.head.kind == server_joins) return note_joined(message.from);
  if (message.head.kind == all_have_left) {
    ++rounds_[message.from];
    return;
  }
  const PartKey key{static_cast<std::size_t>(message.head.table), static_cast<std::size_t>(message.head.part)};
  if (message.head.kind == saved_part && layout_.options.spares > 0) return take_moved_part(message, key);
  const auto found = copies_.find(key);
  if (layout_.is_spare(live_.rank()) || (found != copies_.end() && found->second.moved)) {
    return take_moving(message, key, copies_[key]);
  }
  ensure(found != copies_.end(), "Rank {} asks server {} for part {} of table {}, which it does not have.", message.from,
         live_.rank(), message.head.part, message.head.table);
  Copy& copy = found->second;
  if (message.head.kind == saved_part) {
    copy.part = make_part(key);
    copy.part->load(bytes_in(message.bytes));
    give_part_behind(key, copy);
  }
  ensure(copy.part != nullptr, "Rank {} updates part {} of table {} before server {} has it.", message.from, key.second,
         key.first, live_.rank());
  if (message.head.kind == update_of_part) {
    copy.part->append(update_of(message, layout_.tables[key.first].served));
  } else if (message.head.kind == copied_updates) {
    copy.part->apply_below(message.head.clock);
  } else if (message.head.kind == refused_push) {
    note_refusal(key, copy, static_cast<int>(message.head.request), message.head.clock, text_in(message.bytes));
  } else if (message.head.kind != saved_part) {
    take_from_worker(message, key, copy);
  }
  advance(key, copy);
}

Tensor ServerSide::with_keys(const ReceivedMessage& message, const PartKey& key) {
  const bool has_rows = (message.head.kind & ~(has_cached_keys | is_settled)) != pull_part;
  const ServedTable& table = layout_.tables[key.first].served;
  KeyCache& known = known_keys_[message.from];
  if ((message.head.kind & has_cached_keys) != 0) {
    const bool is_filtered = has_rows && !table.filters.empty();
    return known.restored(key, message.bytes, is_filtered ? FilterChain::keys_begin : 0);
  }
  if (message.bytes) {
    const KeyRange keys = keys_in(message.bytes, table, has_rows);
    known.note(key, message.bytes, keys.begin, keys.count);
  }
  return message.bytes;
}

// Copies hear of it before the update that counts the push.
void ServerSide::note_refusal(const PartKey& key, const Copy& copy, int worker, std::int64_t clock,
                              const std::string& sentence) {
  copy.part->note_refusal(worker, clock, sentence);
  if (copy.behind) send(*copy.behind, key, refusal_head(worker, clock), tensor_of(sentence));
}

void ServerSide::take_from_worker(const ReceivedMessage& message, const PartKey& key, Copy& copy) {
  ServedPart& part = *copy.part;
  const std::uint32_t kind = message.head.kind & ~(has_cached_keys | is_settled | is_decoded);
  const ServedLayout::Table& table = layout_.tables[key.first];
  const Tensor bytes = table.served.key_cache ? with_keys(message, key) : message.bytes;
  if (kind == pull_part) {
    KeyedRows asked = unpacked(bytes, table.served, false);
    part.pull({message.from, message.head.clock, message.head.request, std::move(asked.keys),
               (message.head.kind & is_settled) != 0, std::move(asked.lengths)});
    return;
  }
  KeyedRows pushed;
  if (table.served.filters.empty() || (message.head.kind & is_decoded) != 0) {
    pushed = unpacked(bytes, table.served, true);
  } else {
    pushed = filters_.try_emplace(key, table.served, table.parts[key.second].count).first->second.decoded(bytes);
  }
  // The server from which the part has moved has judged what waited there, and passes it on without its request.
  const bool is_judged = message.head.request == 0;
  const bool awaits_word = table.served.width == ServedTable::any_length && !pushed.keys.empty() && !is_judged;
  // A worker that has learned of a refusal pushes again what the push counted as.
  const bool has_learned = pushed.keys.empty() && part.refusals().contains({message.from, message.head.clock});
  if (has_learned) note_refusal(key, copy, message.from, message.head.clock, {});
  const std::string refusal = part.push(message.from, message.head.clock, std::move(pushed));
  ensure(refusal.empty() || !is_judged, "The part's server before has accepted this: {}", refusal);
  if (!refusal.empty()) {
    if (layout_.goes_on()) note_refusal(key, copy, message.from, message.head.clock, refusal);
    refuse(message.from, key, message.head.request, refusal);
  } else if (awaits_word) {
    send(message.from, key, {.kind = accepted_push, .request = message.head.request});
  }
  if (kind == push_and_pull_part) part.pull({message.from, message.head.clock + 1, message.head.request});
}

// Passes on what is new, applies what all servers behind this one have, and tells those who wait for it.
void ServerSide::advance(const PartKey& key, Copy& copy) {
  ServedPart& part = *copy.part;
  if (copy.behind) {
    for (; copy.passed_on < part.end(); ++copy.passed_on) {
      const PartUpdate& update = part.update(copy.passed_on);
      send(*copy.behind, key, head_of(update), packed(update.pushed));
    }
  } else {
    part.apply_below(part.end());
  }
  acknowledge(key, copy);
  const std::string& table = layout_.tables[key.first].served.name;
  for (const ServedPart::Answer& answer : part.answers()) {
    const ServedPart::Pull& pull = answer.pull;
    if (answer.left) {
      refuse(pull.worker, key, pull.request, refusal_of(pull, part.needed_pushes(pull), *answer.left, table));
    } else if (!answer.refusal.empty()) {
      refuse(pull.worker, key, pull.request, answer.refusal);
    } else {
      send(pull.worker, key, {.kind = values_of_part, .clock = answer.version, .request = pull.request}, answer.values);
    }
  }
  for (const auto& [worker, left] : part.stuck_pushes()) {
    send(worker, key, {.kind = stuck_pushes, .clock = left.pushes}, tensor_of(refusal_of_pushes(worker, left, table)));
  }
}

void ServerSide::acknowledge(const PartKey& key, Copy& copy) {
  const ServedPart& part = *copy.part;
  if (copy.before) {
    if (part.version() > copy.acknowledged) send(*copy.before, key, {.kind = copied_updates, .clock = part.version()});
    copy.acknowledged = part.version();
    return;
  }
  if (!layout_.goes_on()) return;
  for (int worker = 0; worker < layout_.workers; ++worker) {
    std::int64_t& told = copy.acknowledged_to[static_cast<std::size_t>(worker)];
    if (part.applied(worker) > told && live_.is_open(worker))
      send(worker, key, {.kind = applied_pushes, .clock = part.applied(worker)});
    told = part.applied(worker);
  }
}

void ServerSide::handle_goodbye(int rank) {
  live_.close(rank);
  if (layout_.is_server(rank)) return;
  for (auto& [key, copy] : copies_) {
    if (copy.moved) {
      take_moving({rank, {.kind = goodbye}, {}}, key, copy);
      continue;
    }
    if (copy.before || !copy.part) continue;
    copy.part->leave(rank);
    advance(key, copy);
  }
}

std::vector<std::int64_t> ServerSide::holdings() const {
  std::vector<std::int64_t> result;
  for (std::size_t t = 0; t < layout_.tables.size(); ++t) {
    for (std::size_t p = 0; p < layout_.tables[t].parts.size(); ++p) {
      const auto found = copies_.find({t, p});
      result.push_back(found != copies_.end() && found->second.part ? 1 : 0);
    }
  }
  return result;
}

void ServerSide::resume(const std::map<int, std::vector<std::int64_t>>& holdings) {
  const std::lock_guard lock(mutex_);
  known_keys_.clear();
  questions_.clear();  // they come again
  std::size_t number = 0;
  for (std::size_t t = 0; t < layout_.tables.size(); ++t) {
    for (std::size_t p = 0; p < layout_.tables[t].parts.size(); ++p, ++number) {
      const PartKey key{t, p};
      Copy linked;
      link(key, linked);
      if (linked.acknowledged_to.empty()) continue;
      Copy& copy = copies_[key];
      linked.part = std::move(copy.part);
      linked.behind_lacks_part = linked.behind && holdings.at(*linked.behind)[number] == 0;
      copy = std::move(linked);
      if (!copy.part) continue;  // it comes from the server before
      ServedPart& part = *copy.part;
      give_part_behind(key, copy);
      part.forget_pulls();
      for (int worker = 0; worker < layout_.workers; ++worker) {
        if (!live_.has(worker)) part.lose(worker);
      }
      advance(key, copy);
    }
  }
}

}  // namespace stretto
