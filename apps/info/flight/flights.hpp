#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

// The flight files of a job (Job::write_flight), and what they say across ranks.
namespace apps::flight {

struct FlightOperation {
  std::string what, type, tag, site, state;
  std::int64_t group = 0;
  std::int64_t number = 0;
  std::int64_t count = 0;
  int root = -1;
  std::optional<double> begun, ended;  // seconds since 1970

  bool is_message() const { return what == "send" || what == "recv"; }
  bool waits() const { return begun && !ended; }  // it has begun, and never ended
};

struct FlightGroup {
  std::int64_t id = 0;
  std::string name;
  std::vector<int> members;  // ranks of the job
};

// What one rank wrote.
struct Flight {
  std::string job, host, reason, account;
  int rank = 0, size = 0;
  std::int64_t process = 0;
  double written = 0;
  std::vector<FlightGroup> groups;
  std::vector<FlightOperation> operations;  // in the order of the calls
};

// The flights of one job, by rank. Ranks that were stopped or killed wrote none.
struct Job {
  std::string name;
  int size = 0;
  std::map<int, Flight> flights;
};

// The jobs whose files are in the directory, the newest first. damaged: gets a sentence for each file that cannot be read.
// Throws Error if there are no files.
std::vector<Job> read_jobs(const std::string& directory, std::vector<std::string>& damaged);

// The operations of one communicator on all ranks: the collectives, or the messages from one rank to another. By rank, then
// by number.
struct Sequences {
  FlightGroup group;
  std::map<int, std::map<std::int64_t, const FlightOperation*>> of;
};
std::vector<Sequences> collectives_of(const Job& job);
std::vector<Sequences> messages_of(const Job& job);

// "all_reduce #42 of 'world' (1000 f32, gradients, at train.cpp:33)"
std::string headline(const FlightOperation& operation, const FlightGroup& group);
// "rank 3", "ranks 0 to 2 and 5"
std::string names_of(const std::vector<int>& ranks);

// Sentences about operations in which ranks differ: one was left out or is another one, or two have changed places.
std::vector<std::string> differences(const Job& job);
// Sentences about who waits for whom, and about ranks that are behind.
std::vector<std::string> waits(const Job& job);
// Sentences about ranks for which the others wait again and again.
std::vector<std::string> slow_ranks(const Job& job);

}  // namespace apps::flight
