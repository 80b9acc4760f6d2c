#include "collectives/execution/give_up.hpp"

#include <fmt/format.h>
#include <algorithm>

#include "core/fail.hpp"
#include "core/setting_values.hpp"

namespace stretto {
namespace {

constexpr double seconds_to_answer = 1;
constexpr std::size_t most_asked = 4;

// What the ranks say about themselves. A process that is stopped says nothing; one that computes does.
std::string accounts_of(std::vector<int> ranks, Job& job) {
  if (ranks.size() > most_asked) ranks.resize(most_asked);
  const auto relay = std::find(ranks.begin(), ranks.end(), 0) == ranks.end() && job.rank() != 0;
  if (relay) ranks.push_back(0);
  const std::vector<std::string> accounts = job.ask(ranks, seconds_to_answer);
  if (relay) ranks.pop_back();
  std::string text;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (!accounts[i].empty()) {
      text += fmt::format("; rank {} {}", ranks[i], accounts[i]);
    } else if (const std::string news = job.news_of(ranks[i]); !news.empty()) {
      text += fmt::format(". {}", news.substr(0, news.find_last_not_of('.') + 1));
    } else if (relay && accounts.back().empty()) {
      text += fmt::format("; rank {} cannot be asked, because rank 0, which passes questions on, does not answer", ranks[i]);
    } else {
      text += fmt::format("; rank {} does not answer: its process is stopped, or its host cannot be reached", ranks[i]);
    }
  }
  return text;
}

}  // namespace

void give_up(std::vector<int> ranks, Network& network, const std::string& what, const std::string& history) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  Job& job = network.job();
  const std::string sentence = fmt::format("Rank {} waited {} s for rank {} in {}{}", job.rank(), network.timeout(),
                                           fmt::join(ranks, ", "), what, accounts_of(ranks, job));
  job.report(sentence);
  const bool checks = number_setting("STRETTO_CHECK") != 0;
  fail(ErrorCode::timeout, "{}.{} The last operations of rank {}:{}", sentence,
       checks ? "" : " STRETTO_CHECK=1 compares the ranks' calls.", job.rank(), history);
}

}  // namespace stretto
