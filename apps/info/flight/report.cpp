#include "apps/info/flight/report.hpp"

#include <algorithm>
#include <array>
#include <ctime>

#include "apps/common/fail.hpp"
#include "apps/info/flight/flights.hpp"

namespace apps::flight {

namespace {

std::string date_of(double seconds) {
  constexpr double year_10000 = 253402300800;
  const auto time = static_cast<std::time_t>(std::clamp(seconds, 0.0, year_10000));
  std::tm utc{};
  gmtime_r(&time, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &utc);
  return text.data();
}

// The sentence's first line: the reason of a timeout has a list behind it.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string section(const char* title, const std::vector<std::string>& sentences, const char* otherwise) {
  std::string text = fmt::format("\n{}\n", title);
  for (const std::string& sentence : sentences) text += fmt::format("  {}\n", sentence);
  if (sentences.empty()) text += fmt::format("  {}\n", otherwise);
  return text;
}

// The ranks from `first` up to `end`, in a line.
std::string without_file(int first, int end) {
  if (first == end) return "";
  if (end - first == 1) return fmt::format("  {:>4}  wrote no file\n", first);
  return fmt::format("  {:>4}  and all up to {} wrote no file\n", first, end - 1);
}

std::string ranks_of(const Job& job) {
  std::string text = "\nRanks\n";
  int next = 0;
  for (const auto& [rank, flight] : job.flights) {
    text += without_file(next, rank);
    text += fmt::format("  {:>4}  {}:{} {}\n", rank, flight.host, flight.process, flight.account);
    next = rank + 1;
  }
  return text + without_file(next, job.size);
}

}  // namespace

std::string report_of(const std::string& directory, std::vector<std::string>& damaged) {
  std::string text;
  for (const Job& job : read_jobs(directory, damaged)) {
    const Flight& first = job.flights.begin()->second;
    if (!text.empty()) text += "\n";
    text +=
        fmt::format("Job {} of {} ranks, {}: {}\n", job.name, job.size, date_of(first.written), first_line(first.reason));
    text += section("In what ranks differ", differences(job), "In nothing that the files show.");
    text += section("Who waits for whom", waits(job), "Nobody waits.");
    text +=
        section("Slow ranks", slow_ranks(job), "None: in no communicator did one rank cost the others a tenth of the time.");
    text += ranks_of(job);
  }
  return text;
}

}  // namespace apps::flight
