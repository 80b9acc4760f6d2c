#include "collectives/communicator/call_order.hpp"

#include <algorithm>
#include <set>
#include <tuple>

#include "collectives/communicator/group.hpp"
#include "core/fail.hpp"

namespace stretto {
namespace {

constexpr double seconds_between_questions = 1;
constexpr double seconds_to_answer = 0.2;
constexpr std::size_t most_asked_about = 8;  // of one's own calls
constexpr std::size_t most_asked_in_all = 64;

}  // namespace

CallOrder::CallOrder(const std::vector<PendingCall>& calls, std::uint64_t first_record, const Work& work)
    : context_(calls.front().operation->group->context()) {
  std::set<const void*> order;
  for (const PendingCall& call : calls) {
    order.insert(call.operation->group.get());
    if (!call.stream.is_inline()) order.insert(call.stream.queue().get());
  }
  const std::vector<Record> records = context_.ledger().records(first_record);
  if (records.size() < calls.size()) return;  // more than STRETTO_LEDGER: these have no numbers any more
  for (std::size_t i = 0; i < calls.size(); ++i) {
    Communicator::Group& group = *calls[i].operation->group;
    const Call& call = calls[i].operation->call;
    const Record& record = records[i];
    std::vector<int> ranks = group.membership().job_ranks;
    if (is_message(call.collective)) ranks = {ranks[call.root], context_.job().rank()};
    places_.push_back(std::make_unique<OpenCalls::Place>(context_.open_calls(),
                                                         OpenCall{.id = id_of(record, group.membership().id, group.rank()),
                                                                  .text = record.headline(),
                                                                  .ranks = std::move(ranks),
                                                                  .order = {order.begin(), order.end()},
                                                                  .work = work.state()}));
  }
}

void CallOrder::begin() {
  for (const auto& place : places_) place->begin();
}

void CallOrder::check(const std::function<std::vector<int>()>& ranks) {
  if (now_seconds() < asked_at_ + seconds_between_questions) return;
  for (std::size_t i = 0; i < std::min(places_.size(), most_asked_about); ++i) check(places_[i]->call(), ranks());
  asked_at_ = now_seconds();
}

// A rank that waits in an operation, which keeps it from beginning that of the rank before it.
struct CallOrder::Waiting {
  int rank;
  std::size_t before;  // index of the rank that waits for this one
  OperationId in;
  std::string text;
  std::vector<int> waits_for;
};

// The answers agree with each other although they come one after the other: an operation cannot have ended that a later
// answer says has not begun.
void CallOrder::check(const OpenCall& mine, std::vector<int> ranks) {
  std::erase_if(ranks, [&](int rank) { return std::ranges::count(mine.ranks, rank) == 0; });
  const int me = context_.job().rank();
  std::vector<Waiting> waiting{{me, 0, mine.id, mine.text, std::move(ranks)}};
  std::set<std::tuple<int, std::uint64_t, std::uint64_t>> asked;  // rank and operation
  for (std::size_t i = 0; i < waiting.size() && asked.size() < most_asked_in_all; ++i) {
    const OperationId wanted = waiting[i].in;
    std::vector<int> next = waiting[i].waits_for;
    std::erase_if(next, [&](int rank) { return rank == me || !asked.emplace(rank, wanted.series, wanted.number).second; });
    if (next.empty()) continue;
    std::vector<RankAccount> accounts = context_.job().ask(next, seconds_to_answer, wanted);
    for (std::size_t k = 0; k < next.size(); ++k) {
      RankAccount& its = accounts[k];
      if (its.held_up_in.number == 0) continue;
      waiting.push_back({next[k], i, its.held_up_in, std::move(its.held_up_text), std::move(its.held_up_by)});
      const bool for_me = std::ranges::count(waiting.back().waits_for, me) > 0;
      if (for_me && context_.open_calls().comes_after(its.held_up_in, mine)) report(waiting);
    }
  }
}

void CallOrder::report(const std::vector<Waiting>& waiting) {
  std::vector<const Waiting*> circle;
  for (std::size_t i = waiting.size() - 1; i != 0; i = waiting[i].before) circle.insert(circle.begin(), &waiting[i]);
  circle.insert(circle.begin(), &waiting.front());
  std::string sentence;
  for (std::size_t i = 0; i < circle.size(); ++i) {
    const bool is_last = i + 1 == circle.size();
    sentence += fmt::format("{} {} waits for rank {} in {}, ",
                            i == 0    ? "Rank"
                            : is_last ? "and rank"
                                      : "rank",
                            circle[i]->rank, circle[is_last ? 0 : i + 1]->rank, circle[i]->text);
  }
  sentence += fmt::format(
      "and {} before its own has ended: call the operations of several communicators in the same order on all "
      "ranks, or give each communicator a stream of its own.",
      circle.size() == 2 ? "neither can begin the other's operation"
                         : "none can begin the operation of the rank that waits for it");
  context_.job().abort(sentence);
  throw Error(ErrorCode::invalid_argument, sentence);
}

}  // namespace stretto
