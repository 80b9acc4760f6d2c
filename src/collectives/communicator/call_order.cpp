#include "collectives/communicator/call_order.hpp"

#include <algorithm>
#include <set>

#include "collectives/communicator/group.hpp"
#include "core/fail.hpp"

namespace stretto {
namespace {

constexpr double seconds_between_questions = 1;
constexpr double seconds_to_answer = 0.2;
constexpr std::size_t most_asked_about = 8;

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

void CallOrder::check(const OpenCall& mine, std::vector<int> ranks) {
  std::erase_if(ranks, [&](int rank) { return std::ranges::count(mine.ranks, rank) == 0; });
  if (ranks.empty()) return;
  Job& job = context_.job();
  const std::vector<RankAccount> accounts = job.ask(ranks, seconds_to_answer, mine.id);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const RankAccount& theirs = accounts[i];
    if (theirs.held_up_in.number == 0 || !context_.open_calls().comes_after(theirs.held_up_in, mine)) continue;
    const std::string sentence = fmt::format(
        "Rank {} waits for rank {} in {}, and rank {} waits for rank {} in {}, and neither can begin the other's operation "
        "before its own has ended: call the operations of several communicators in the same order on all ranks, or give "
        "each communicator a stream of its own.",
        job.rank(), ranks[i], mine.text, ranks[i], job.rank(), theirs.held_up_text);
    job.abort(sentence);
    throw Error(ErrorCode::invalid_argument, sentence);
  }
}

}  // namespace stretto
