#include "collectives/ledger/flight.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "core/fail.hpp"
#include "device/stream/stream_queue.hpp"
#include "stretto/output_file.hpp"

namespace stretto {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t operations_kept = 1000;

bool in_progress(const Record& record) { return record.times.started > 0 && record.times.done == 0; }

const char* state_of(const Record& record) {
  return record.failed ? "failed" : record.times.done > 0 ? "done" : record.times.started > 0 ? "begun" : "enqueued";
}

// Seconds since 1970, so that hosts can be compared as well as their clocks allow; null: not yet.
Json date_of(double steady, double now) {
  if (steady == 0) return nullptr;
  const double today = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return today - (now - steady);
}

Json operation_of(const Record& record, double now) {
  Json operation{{"sequence", record.sequence},
                 {"what", name(record.collective)},
                 {"group", record.partners ? record.partners->group_id : 0},
                 {"number", record.number},
                 {"count", record.count},
                 {"type", record.quantized == QuantizedFormat::none ? name(record.dtype) : name(record.quantized)},
                 {"root", record.root},
                 {"bytes_sent", record.bytes_sent},
                 {"algorithm", record.method_text()},
                 {"stream", record.stream},
                 {"tag", record.tag},
                 {"site", record.site.to_string()},
                 {"state", state_of(record)},
                 {"enqueued", date_of(record.times.enqueued, now)},
                 {"begun", date_of(record.times.started, now)},
                 {"ended", record.failed ? Json() : date_of(record.times.done, now)}};
  return operation;
}

std::string host() {
  std::array<char, 256> text{};
  gethostname(text.data(), text.size() - 1);
  return text.data();
}

}  // namespace

// The program's own thread is in an inline operation, and the oldest of the others holds them up. If no thread of the
// program waits, the rank computes: receives may have begun long ahead.
LedgerAccount account_of(const Ledger& ledger) {
  const std::vector<Record> records = ledger.last(operations_kept);
  const double now = now_seconds();
  const auto is_inline = [](const Record& record) { return record.stream == Stream::inline_().name(); };
  auto current = std::ranges::find_if(records, [&](const Record& each) { return in_progress(each) && is_inline(each); });
  const bool waits = current != records.end() || waiting_program_threads > 0;
  if (current == records.end()) current = std::ranges::find_if(records, in_progress);
  if (current != records.end()) {
    const std::string operation = current->headline();
    const double seconds = now - current->times.started;
    if (waits) return {fmt::format("has been in {} for {:.1f} s", operation, seconds), true};
    return {fmt::format("is in no operation that its program waits for: {} has been under way for {:.1f} s", operation,
                        seconds)};
  }
  for (auto record = records.rbegin(); record != records.rend(); ++record) {
    if (record->times.done == 0) continue;
    return {fmt::format("is in no operation: its last one, {}, {} {:.1f} s ago", record->headline(),
                        record->failed ? "failed" : "ended", now - record->times.done)};
  }
  return {"is in no operation, and has ended none"};
}

std::string write_flight(const Ledger& ledger, const FlightLabel& label, const std::string& directory) {
  const double now = now_seconds();
  Json flight{{"format", "stretto flight 1"},
              {"job", fmt::format("{:016x}", label.job)},
              {"rank", label.rank},
              {"size", label.size},
              {"host", host()},
              {"process", getpid()},
              {"written", date_of(now, now)},
              {"reason", label.reason},
              {"account", account_of(ledger).text},
              {"groups", Json::array()},
              {"operations", Json::array()}};
  std::map<std::uint64_t, Json> groups;
  for (const Record& record : ledger.last(operations_kept)) {
    flight["operations"].push_back(operation_of(record, now));
    if (!record.partners) continue;
    const std::uint64_t id = record.partners->group_id;
    groups[id] = {{"id", id}, {"name", record.group}, {"members", record.partners->members}};
  }
  for (auto& entry : groups) flight["groups"].push_back(std::move(entry.second));

  const std::filesystem::path path =
      std::filesystem::path(directory) / fmt::format("flight_{:016x}_{:05}.json", label.job, label.rank);
  std::error_code error;
  std::filesystem::create_directories(directory, error);  // or else the file says why not
  write_output_file(path, flight.dump(1, ' ', false, Json::error_handler_t::replace) + '\n',
                    "The record of the last operations " + path.string());
  return path;
}

}  // namespace stretto
