#include "server/parts/served_part.hpp"

#include <algorithm>
#include <utility>

#include "core/fail.hpp"
#include "server/parts/served_range.hpp"
#include "server/parts/served_rows.hpp"

namespace stretto {

ServedPart::ServedPart(int workers, Consistency consistency, bool acknowledges)
    : consistency_(consistency),
      acknowledges_(acknowledges),
      applied_(static_cast<std::size_t>(workers)),
      pushes_(workers),
      told_stuck_(applied_.size()) {}

std::string ServedPart::push(int worker, std::int64_t clock, KeyedRows pushed) {
  check(worker, pushed);
  const auto known = refusals_.find({worker, clock});
  std::string refused;
  if (known != refusals_.end()) {
    refused = known->second;
  } else if (clock >= pushes_.clock(worker)) {
    refused = refusal(worker, pushed.keys, pushed.lengths);
  }
  if (!refused.empty()) pushed = {};
  if (!pushes_.count(worker, clock)) return refused;
  note(pushed);
  if (consistency_.kind == Consistency::Kind::eventual) {
    to_apply_.push_back({.number = end(), .worker = worker, .pushed = std::move(pushed)});
  } else {
    pushes_.keep(worker, std::move(pushed));
    make_updates();
  }
  return refused;
}

void ServedPart::note_refusal(int worker, std::int64_t clock, const std::string& sentence) {
  if (sentence.empty()) {
    refusals_.erase({worker, clock});
  } else {
    refusals_.insert_or_assign({worker, clock}, sentence);
  }
}

void ServedPart::make_updates() {
  while (pushes_.has_whole_clock()) {
    const std::vector<KeyedRows> pushes = pushes_.take_whole_clock();
    to_apply_.push_back({.number = end(), .pushes = static_cast<int>(pushes.size()), .pushed = sum(pushes)});
  }
}

void ServedPart::lose(int worker) {
  pushes_.lose(worker);
  std::erase_if(refusals_, [&](const auto& its) { return its.first.first == worker; });
  if (consistency_.kind != Consistency::Kind::eventual) make_updates();
}

void ServedPart::append(PartUpdate update) {
  if (update.number < end()) return;
  ensure(update.number == end(), "Update {} came behind {}.", update.number, end() - 1);
  check(update.worker, update.pushed);
  const std::string refused = refusal(update.worker, update.pushed.keys, update.pushed.lengths);
  // The first server has looked at the lengths, but its memory is another one.
  if (!refused.empty()) fail(ErrorCode::unavailable, "{}", refused);
  note(update.pushed);  // pushes may come before it is applied, if this copy becomes the first
  for (int worker = 0; worker < static_cast<int>(applied_.size()); ++worker) {
    if (update.worker == PartUpdate::all_workers) {
      pushes_.advance(worker, update.number + 1);
    } else if (update.worker == worker) {
      pushes_.advance(worker, pushes_.clock(worker) + 1);
    }
  }
  to_apply_.push_back(std::move(update));
}

void ServedPart::apply_below(std::int64_t number) {
  while (version_ < std::min(number, end())) {
    const PartUpdate& next = to_apply_.front();
    apply(next);
    ++version_;
    if (next.worker == PartUpdate::all_workers) {
      std::ranges::fill(applied_, version_);
    } else {
      ++applied_[static_cast<std::size_t>(next.worker)];
    }
    to_apply_.pop_front();
  }
}

bool ServedPart::has_version(const Pull& pull) const {
  if (consistency_.kind != Consistency::Kind::eventual) return version_ >= needed_pushes(pull);
  // Whatever the others do, a worker reads what it has pushed before.
  if (!pull.settled) return applied(pull.worker) >= pull.clock;
  for (int worker = 0; worker < static_cast<int>(applied_.size()); ++worker) {
    // The pull waits for all that a lost worker had sent, so that workers that meet behind the loss read the same values.
    const bool all = worker == pull.worker || pushes_.is_lost(worker);
    if (applied(worker) < (all ? pushes_.clock(worker) : pull.clock)) return false;
  }
  return true;
}

std::vector<ServedPart::Answer> ServedPart::answers() {
  std::vector<Answer> result;
  std::erase_if(waiting_, [&](const Pull& pull) {
    if (!has_version(pull)) {
      const std::optional<PushClocks::Left> left = pushes_.left_before(needed_pushes(pull));
      if (left) result.push_back({.pull = pull, .values = {}, .left = left});
      return left.has_value();
    }
    const bool is_exact = consistency_.kind == Consistency::Kind::exact && !pull.settled;
    const std::int64_t given = is_exact ? needed_pushes(pull) : version_;
    read(result.emplace_back(Answer{.pull = pull, .values = {}, .version = given}), version_ - given);
    return true;
  });
  return result;
}

std::vector<ServedPart::StuckPushes> ServedPart::stuck_pushes() {
  std::vector<StuckPushes> result;
  if (!acknowledges_ || consistency_.kind == Consistency::Kind::eventual || !pushes_.any_has_left()) return result;
  for (std::size_t w = 0; w < told_stuck_.size(); ++w) {
    const auto worker = static_cast<int>(w);
    const std::int64_t clock = pushes_.clock(worker);
    if (clock == told_stuck_[w]) continue;
    const std::optional<PushClocks::Left> left = pushes_.left_before(clock);
    if (!left) continue;
    told_stuck_[w] = clock;
    result.push_back({worker, *left});
  }
  return result;
}

ServedPart::Waiting ServedPart::take_waiting() {
  ensure(to_apply_.empty(), "A part moves while {} updates are under way.", to_apply_.size());
  Waiting waiting{.pushes = {}, .pulls = std::exchange(waiting_, {})};
  for (int worker = 0; worker < static_cast<int>(applied_.size()); ++worker) {
    std::deque<KeyedRows> kept = pushes_.take_kept(worker);
    std::int64_t clock = pushes_.clock(worker) - std::ssize(kept);
    for (KeyedRows& rows : kept) waiting.pushes.push_back({worker, clock++, std::move(rows)});
  }
  return waiting;
}

Bytes ServedPart::saved() const {
  std::vector<std::int64_t> head{version_};
  head.insert(head.end(), applied_.begin(), applied_.end());
  std::vector<Bytes> pieces;
  save_to(pieces);
  head.push_back(std::ssize(pieces));
  std::vector<std::int64_t> refused;  // worker, clock
  std::vector<Bytes> sentences;
  for (const auto& [push, sentence] : refusals_) {
    refused.insert(refused.end(), {push.first, push.second});
    sentences.push_back(bytes_of(std::vector<char>(sentence.begin(), sentence.end())));
  }
  return packed({bytes_of(head), packed(pieces), bytes_of(refused), packed(sentences)});
}

void ServedPart::load(const Bytes& saved) {
  const std::vector<Bytes> all = unpacked(saved, 4);
  const auto head = values_of<std::int64_t>(all[0]);
  ensure(head.size() == applied_.size() + 2, "A copy of a part came with {} numbers for {} workers.", head.size(),
         applied_.size());
  const auto room = static_cast<std::int64_t>(all[1].size() / sizeof(std::uint64_t));  // of the length of each
  ensure(head.back() >= 0 && head.back() <= room, "A copy of a part came with {} pieces in {} bytes.", head.back(),
         all[1].size());
  load_from(unpacked(all[1], static_cast<int>(head.back())));
  version_ = head.front();
  to_apply_.clear();
  std::copy_n(head.begin() + 1, applied_.size(), applied_.begin());
  for (std::size_t w = 0; w < applied_.size(); ++w) pushes_.advance(static_cast<int>(w), applied_[w]);
  const auto refused = values_of<std::int64_t>(all[2]);
  const std::vector<Bytes> sentences = unpacked(all[3], static_cast<int>(refused.size() / 2));
  refusals_.clear();
  for (std::size_t i = 0; i < sentences.size(); ++i) {
    const auto sentence = values_of<char>(sentences[i]);
    note_refusal(static_cast<int>(refused[2 * i]), refused[2 * i + 1], {sentence.begin(), sentence.end()});
  }
}

std::unique_ptr<ServedPart> make_served_part(const ServedTable& table, std::int64_t first, std::int64_t count, int workers,
                                             const Consistency& consistency, bool acknowledges) {
  if (table.is_sparse()) return std::make_unique<ServedRows>(table, workers, consistency, acknowledges);
  const Tensor values = Tensor::zeros({count}, table.dtype);
  if (table.initial) table.initial(values, first);
  return std::make_unique<ServedRange>(values, workers, consistency, table.update, acknowledges, first);
}

}  // namespace stretto
