#include "collectives/execution/give_up.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <iterator>
#include <set>

#include "core/fail.hpp"
#include "core/setting_values.hpp"

namespace stretto {
namespace {

constexpr double seconds_to_answer = 1;
constexpr std::size_t most_asked = 8;

std::string said_by(int rank, const RankAccount& account, bool rank_0_answers, const JobControl& job) {
  if (!account.text.empty()) {
    const std::string waits =
        account.waits_for.empty() ? "" : fmt::format(", and waits for rank {}", fmt::join(account.waits_for, ", "));
    return fmt::format("; rank {} {}{}", rank, account.text, waits);
  }
  if (const std::string news = job.news_of(rank); !news.empty()) {
    return fmt::format(". {}", news.substr(0, news.find_last_not_of('.') + 1));
  }
  if (!rank_0_answers) {
    return fmt::format("; rank {} cannot be asked, because rank 0, which passes questions on, does not answer", rank);
  }
  return fmt::format("; rank {} does not answer: its process is stopped, or its host cannot be reached", rank);
}

}  // namespace

// A stopped process does not answer; a process that computes does.
std::string accounts_of(std::vector<int> ranks, JobControl& job) {
  std::string text;
  std::set<int> asked{job.rank()};
  while (!ranks.empty()) {
    ranks.resize(std::min(ranks.size(), most_asked));
    asked.insert(ranks.begin(), ranks.end());
    std::vector<int> with_relay = ranks;
    if (job.rank() != 0) with_relay.push_back(0);
    const std::vector<RankAccount> accounts = job.ask(with_relay, seconds_to_answer);
    std::set<int> next;
    bool all_answer = true;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      text += said_by(ranks[i], accounts[i], job.rank() == 0 || !accounts.back().text.empty(), job);
      all_answer &= !accounts[i].text.empty();
      next.insert(accounts[i].waits_for.begin(), accounts[i].waits_for.end());
    }
    if (!all_answer || asked.size() > most_asked) break;
    ranks.clear();
    std::ranges::set_difference(next, asked, std::back_inserter(ranks));
  }
  return text;
}

void give_up(std::vector<int> ranks, Network& network, const std::string& what, const std::string& history) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  JobControl& job = network.job();
  const std::string sentence = fmt::format("Rank {} waited {} s for rank {} in {}{}", job.rank(), network.timeout(),
                                           fmt::join(ranks, ", "), what, accounts_of(ranks, job));
  job.report(sentence);
  const bool checks = number_setting("STRETTO_CHECK") != 0;
  fail(ErrorCode::timeout, "{}.{} The last operations of rank {}:{}", sentence,
       checks ? "" : " STRETTO_CHECK=1 compares the ranks' calls.", job.rank(), history);
}

}  // namespace stretto
