#include "flight/report.hpp"

#include <array>
#include <cstdio>
#include <ctime>

#include "fail.hpp"
#include "flight/flights.hpp"

namespace gpt::flight {

namespace {

std::string date_of(double seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm utc{};
  gmtime_r(&time, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &utc);
  return text.data();
}

// The sentence's first line: the reason of a timeout has a list behind it.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

void print(const char* title, const std::vector<std::string>& sentences, const char* otherwise) {
  fmt::print("\n{}\n", title);
  for (const std::string& sentence : sentences) fmt::print("  {}\n", sentence);
  if (sentences.empty()) fmt::print("  {}\n", otherwise);
}

}  // namespace

void print_report(const std::string& directory) {
  const std::vector<Job> jobs = read_jobs(directory);
  for (const Job& job : jobs) {
    const Flight& first = job.flights.begin()->second;
    fmt::print("Job {} of {} ranks, {}: {}\n", job.name, job.size, date_of(first.written), first_line(first.reason));
    print("In what ranks differ", differences(job), "In nothing that the files show.");
    print("Who waits for whom", waits(job), "Nobody waits.");
    print("Slow ranks", slow_ranks(job), "None: in no communicator did one rank cost the others a tenth of the time.");
    fmt::print("\nRanks\n");
    for (int rank = 0; rank < job.size; ++rank) {
      const auto flight = job.flights.find(rank);
      if (flight == job.flights.end()) {
        fmt::print("  {:>4}  wrote no file\n", rank);
      } else {
        fmt::print("  {:>4}  {}:{} {}\n", rank, flight->second.host, flight->second.process, flight->second.account);
      }
    }
    if (&job != &jobs.back()) fmt::print("\n");
  }
}

}  // namespace gpt::flight
