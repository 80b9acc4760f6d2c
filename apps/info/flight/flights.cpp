#include "apps/info/flight/flights.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "apps/common/fail.hpp"
#include "apps/train/data/data_file.hpp"

namespace apps::flight {

using Json = nlohmann::json;
using stretto::ErrorCode;

namespace {

std::optional<double> date(const Json& json) { return json.is_number() ? std::optional(json.get<double>()) : std::nullopt; }

// Json's own conversion cuts off what does not fit.
template <class Number>
Number whole(const Json& json) {
  const bool fits = json.is_number_unsigned() ? std::in_range<Number>(json.get<std::uint64_t>())
                                              : json.is_number_integer() && std::in_range<Number>(json.get<std::int64_t>());
  if (!fits) throw Json::type_error::create(302, "a number in it is not whole, or too large", &json);
  return json.get<Number>();
}

Flight read_flight(const std::filesystem::path& path) {
  const std::string text = DataFile(path.string()).text();
  try {
    const Json json = Json::parse(text);
    const std::string format = json.at("format");
    require(format == "stretto flight 1", "{} has the format '{}'; this program reads 'stretto flight 1'.", path.string(),
            format);
    Flight flight;
    flight.job = json.at("job");
    flight.host = json.at("host");
    flight.reason = json.at("reason");
    flight.account = json.at("account");
    flight.rank = whole<int>(json.at("rank"));
    flight.size = whole<int>(json.at("size"));
    require(flight.rank >= 0 && flight.rank < flight.size, "{} is of rank {} of {}, which there cannot be.", path.string(),
            flight.rank, flight.size);
    flight.process = whole<std::int64_t>(json.at("process"));
    flight.written = json.at("written");
    for (const Json& group : json.at("groups")) {
      std::vector<int> members;
      for (const Json& member : group.at("members")) members.push_back(whole<int>(member));
      flight.groups.push_back({whole<std::int64_t>(group.at("id")), group.at("name"), std::move(members)});
    }
    for (const Json& each : json.at("operations")) {
      flight.operations.push_back({each.at("what"), each.at("type"), each.at("tag"), each.at("site"), each.at("state"),
                                   whole<std::int64_t>(each.at("group")), whole<std::int64_t>(each.at("number")),
                                   whole<std::int64_t>(each.at("count")), whole<int>(each.at("root")),
                                   date(each.at("begun")), date(each.at("ended"))});
    }
    return flight;
  } catch (const Json::exception&) {
    fail(ErrorCode::io, "{} is no flight file: it is cut off, damaged, or of another program.", path.string());
  }
}

const FlightGroup* group_of(const Flight& flight, std::int64_t id) {
  const auto found = std::ranges::find(flight.groups, id, &FlightGroup::id);
  return found == flight.groups.end() ? nullptr : &*found;
}

// key: a text that tells apart what is to be compared apart; empty: not to be compared.
template <class Key>
std::vector<Sequences> sequences_of(const Job& job, const Key& key) {
  std::map<std::string, Sequences> all;
  for (const auto& [rank, flight] : job.flights) {
    for (const FlightOperation& operation : flight.operations) {
      const FlightGroup* const group = group_of(flight, operation.group);
      if (group == nullptr) continue;
      const std::string name = key(operation, *group, rank);
      if (name.empty()) continue;
      Sequences& sequences = all[name];
      sequences.group = *group;
      sequences.of[rank][operation.number] = &operation;
    }
  }
  std::vector<Sequences> result;
  result.reserve(all.size());
  for (auto& entry : all) result.push_back(std::move(entry.second));
  return result;
}

}  // namespace

std::vector<Job> read_jobs(const std::string& directory, std::vector<std::string>& damaged) {
  std::map<std::string, Job> jobs;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("flight_") || !name.ends_with(".json")) continue;
    try {
      Flight flight = read_flight(entry.path());
      Job& job = jobs[flight.job];
      job.name = flight.job;
      job.size = std::max(job.size, flight.size);
      job.flights[flight.rank] = std::move(flight);
    } catch (const stretto::Error& unreadable) {
      damaged.emplace_back(unreadable.what());
    }
  }
  if (error) fail(ErrorCode::io, "Cannot read {}: {}.", directory, error.message());
  require(!jobs.empty() || !damaged.empty(), "{} has no flight files; ranks write them to STRETTO_FLIGHT_DIR.", directory);
  std::vector<Job> result;
  result.reserve(jobs.size());
  for (auto& entry : jobs) result.push_back(std::move(entry.second));
  std::ranges::sort(result, std::greater<>(), [](const Job& job) { return job.flights.begin()->second.written; });
  return result;
}

std::vector<Sequences> collectives_of(const Job& job) {
  return sequences_of(job, [](const FlightOperation& operation, const FlightGroup& group, int) {
    return operation.is_message() ? std::string() : fmt::format("{} {}", group.id, fmt::join(group.members, " "));
  });
}

std::vector<Sequences> messages_of(const Job& job) {
  return sequences_of(job, [](const FlightOperation& operation, const FlightGroup& group, int rank) {
    const auto known = operation.is_message() && operation.root >= 0 && operation.root < std::ssize(group.members);
    if (!known || group.members[static_cast<std::size_t>(operation.root)] == rank) return std::string();
    const int peer = group.members[static_cast<std::size_t>(operation.root)];
    const bool sends = operation.what == "send";
    return fmt::format("{} {} | {} {}", group.id, fmt::join(group.members, " "), sends ? rank : peer, sends ? peer : rank);
  });
}

std::string headline(const FlightOperation& operation, const FlightGroup& group) {
  return fmt::format("{} #{} of '{}' ({} {}{}{}{}{})", operation.what, operation.number, group.name, operation.count,
                     operation.type, operation.tag.empty() ? "" : ", ", operation.tag, operation.site.empty() ? "" : ", at ",
                     operation.site);
}

std::string names_of(const std::vector<int>& ranks) {
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    runs.push_back(end - i > 2 ? fmt::format("{} to {}", ranks[i], ranks[end - 1]) : std::to_string(ranks[i]));
    if (end - i == 2) runs.push_back(std::to_string(ranks[i + 1]));
    i = end;
  }
  if (runs.size() == 1) return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", runs.front());
  const std::string last = runs.back();
  runs.pop_back();
  return fmt::format("ranks {} and {}", fmt::join(runs, ", "), last);
}

}  // namespace apps::flight
