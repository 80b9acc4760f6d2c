#include "stretto/settings.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "core/fail.hpp"
#include "core/setting_values.hpp"

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX leaves it to the program

namespace stretto {
namespace {

enum class Kind { text, number, integer, integers, choice };
struct Rule {
  Setting setting;
  Kind kind;
  std::vector<std::string> choices;  // of a choice
  double least = 0, most = 1e15;     // of a number
};
constexpr double most_seconds = 1e9;  // the clocks count nanoseconds in 64 bits

const std::vector<Rule>& rules() {
  // Never destroyed, like settings(): a communicator in static storage still reads it when the program ends.
  static const auto& table = *new std::vector<Rule>{
      {{"STRETTO_TRANSPORT", "route between ranks: auto (shared memory inside a host, UCX between hosts), shm or ucx",
        "auto"},
       Kind::choice,
       {"auto", "shm", "ucx"}},
      {{"STRETTO_TIMEOUT", "seconds that a rank waits for another before it gives up", "600"},
       Kind::number,
       {},
       0,
       most_seconds},
      {{"STRETTO_WAIT", "how to wait: auto (spin while ranks <= cores, then yield, then sleep), spin, yield or sleep",
        "auto"},
       Kind::choice,
       {"auto", "spin", "yield", "sleep"}},
      {{"STRETTO_PIN",
        "auto: stretto::launch gives each rank cores of its own if there are enough, and else spreads ranks evenly if every "
        "core gets the same number and no other job has claimed one; ranks that are pinned already stay so; off: no rank is "
        "pinned",
        "auto"},
       Kind::choice,
       {"auto", "off"}},
      {{"STRETTO_RING_BYTES",
        "shared memory between two ranks of a communicator, in bytes for each direction; 0: 1 MiB between 2 ranks, 512 KiB "
        "among 4, 256 KiB from 8 on",
        "0"},
       Kind::integer,
       {}},
      {{"STRETTO_SHM_DIR", "directory (a tmpfs) for shared memory; empty: anonymous memory files", ""}, Kind::text, {}},
      {{"STRETTO_HEAP_BYTES", "address space that each process reserves for its symmetric heap, in bytes", "68719476736"},
       Kind::integer,
       {}},
      {{"STRETTO_COMPUTE_THREADS", "threads that a rank uses in a matrix product, and for the chunks of DeMo, 1 to 1024",
        "1"},
       Kind::integer,
       {},
       1,
       1024},
      {{"STRETTO_CPU_LEVEL",
        "instructions that host kernels may use: native (all that the processor has), or no more than avx512 (x86-64-v4, "
        "without bf16), avx2 (x86-64-v3) or baseline (x86-64; oneDNN still uses SSE4.1); OpenBLAS, which "
        "multiplies f64, takes OPENBLAS_CORETYPE instead",
        "native"},
       Kind::choice,
       {"native", "avx512", "avx2", "baseline"}},
      {{"STRETTO_GPU", "number of the GPU that this process uses; empty: its rank on the host modulo the number of GPUs",
        ""},
       Kind::text,
       {}},
      {{"STRETTO_GPU_TRANSPORT",
        "how ranks reach each other's GPUs: nccl, copies (between threads of one process), ipc, staged (through host "
        "memory), or auto: nccl if each rank has a GPU of its own, copies between threads of one process, ipc if all ranks "
        "share a host and CUDA opens their memory to each other, else staged",
        "auto"},
       Kind::choice,
       {"auto", "nccl", "copies", "ipc", "staged"}},
      {{"STRETTO_NCCL_SERVE",
        "collectives that libstretto-nccl runs with Stretto although NCCL could, such as all_reduce,all_gather; all, none, "
        "or auto (those that STRETTO_ALGO or STRETTO_DETERMINISTIC concerns)",
        "auto"},
       Kind::text,
       {}},
      {{"STRETTO_NCCL_REPORT", "1: libstretto-nccl prints at exit which calls Stretto served, which NCCL served, and why",
        "0"},
       Kind::choice,
       {"0", "1"}},
      {{"STRETTO_JOB_SECRET", "secret shared by the ranks of a job that meet over TCP; processes without it are refused",
        ""},
       Kind::text,
       {}},
      {{"STRETTO_INSECURE",
        "1: a job whose ranks are on several hosts needs no STRETTO_JOB_SECRET; anybody who reaches its ports can join",
        "0"},
       Kind::choice,
       {"0", "1"}},
      {{"STRETTO_PORT",
        "TCP port on which rank 0 listens; 0: MASTER_PORT, or MASTER_PORT + 1 where torchrun itself listens on that", "0"},
       Kind::integer,
       {},
       0,
       65535},
      {{"STRETTO_SERVERS_PORT",
        "TCP port on which the first parameter server says its state to stretto-info servers, the second on the next one, "
        "and so on; 0: none",
        "0"},
       Kind::integer,
       {},
       0,
       65535},
      {{"STRETTO_PROGRAMS_PORT",
        "TCP port on which rank 0 says to stretto-info programs what programs of one controller run; 0: none", "0"},
       Kind::integer,
       {},
       0,
       65535},
      {{"STRETTO_ADDRESS",
        "name or address at which other hosts reach this one, for the unique ids of the C interface; empty: the host's name",
        ""},
       Kind::text,
       {}},
      {{"STRETTO_MEET_TIMEOUT", "seconds within which all ranks of a job must connect to rank 0", "60"},
       Kind::number,
       {},
       0,
       most_seconds},
      {{"STRETTO_ALGO",
        "algorithms by collective and bytes, such as all_reduce:0-4k:recursive_doubling,4k-inf:ring;broadcast:chain/16", ""},
       Kind::text,
       {}},
      {{"STRETTO_TUNING", "file with measured costs and a table of algorithms, as stretto-perf calibrate writes it", ""},
       Kind::text,
       {}},
      {{"STRETTO_CALIBRATE",
        "auto: the first job with a number of ranks on a kind of machine measures at its start which methods are fastest, "
        "and "
        "keeps it for all later jobs, unless STRETTO_TUNING or STRETTO_DETERMINISTIC=1 is set; off: no job measures, or "
        "uses "
        "what others have measured; now: this job measures anew, and keeps that",
        "auto"},
       Kind::choice,
       {"auto", "off", "now"}},
      {{"STRETTO_CACHE_DIR", "directory for what was measured; empty: stretto in XDG_CACHE_HOME, or .cache/stretto in HOME",
        ""},
       Kind::text,
       {}},
      {{"STRETTO_EXPLAIN", "1: print on stderr which algorithm was chosen, and why", "0"}, Kind::choice, {"0", "1"}},
      {{"STRETTO_DETERMINISTIC",
        "1: sums are formed in rank order at every message size, and nothing measured decides anything; on a GPU, attention "
        "sums in a fixed order",
        "0"},
       Kind::choice,
       {"0", "1"}},
      {{"STRETTO_CHECK", "1: compare the ranks' calls before each operation; an error names where they differ", "0"},
       Kind::choice,
       {"0", "1"}},
      {{"STRETTO_RANKS_PER_NODE",
        "treat every N consecutive ranks as one node; a list such as 3,1,2 gives each node's size; 0: nodes are hosts", "0"},
       Kind::integers,
       {}},
      {{"STRETTO_NODES_PER_POD", "treat every N consecutive nodes as one pod; links between pods are slower; 0: no pods",
        "0"},
       Kind::integer,
       {}},
      {{"STRETTO_LINKS",
        "slow the messages between ranks of one host down to these links inside and between nodes, such as "
        "intra=50GB/s,1us;inter=1Gb/s,20us (units Gb/s, Mb/s, GB/s, MB/s; us, ms); links that are left out are not slowed "
        "down",
        ""},
       Kind::text,
       {}},
      {{"STRETTO_NETWORK",
        "bandwidth and latency of a host's network, such as 10Gb/s,20us (units as above), for the choice of algorithms; if "
        "it is unset, a tuning file that knows the route 'network' counts instead",
        "10Gb/s,20us"},
       Kind::text,
       {}},
      {{"STRETTO_LOG", "least severe message that is logged to stderr: debug, info, warn or error", "warn"},
       Kind::choice,
       {"debug", "info", "warn", "error"}},
      {{"STRETTO_FLIGHT_DIR",
        "directory into which each rank writes its last operations when one times out or the job fails, for "
        "stretto-info flight; empty: nothing is written",
        ""},
       Kind::text,
       {}},
      {{"STRETTO_LEDGER", "number of communication records that each rank keeps", "65536"}, Kind::integer, {}},
      {{"STRETTO_MPI_REPORT",
        "1: libstretto-mpi.so prints on stderr at MPI_Finalize which collective calls were served and which were "
        "forwarded to the MPI, and why",
        "0"},
       Kind::choice,
       {"0", "1"}},
  };
  return table;
}

const Rule* find(const std::string& name) {
  for (const Rule& rule : rules()) {
    if (name == rule.setting.name) return &rule;
  }
  return nullptr;
}

double parse_number(const Rule& rule, const std::string& value) {
  char* end = nullptr;
  const double number = std::strtod(value.c_str(), &end);
  require(!value.empty() && *end == '\0' && number >= rule.least && number <= rule.most,
          "{}='{}' is not a number from {} to {}; give one like {}.", rule.setting.name, value, rule.least, rule.most,
          rule.setting.default_value);
  require(rule.kind == Kind::number || number == std::floor(number), "{}={} is not a whole number; give one like {}.",
          rule.setting.name, value, rule.setting.default_value);
  return number;
}

std::vector<std::int64_t> parse_numbers(const Rule& rule, const std::string& value) {
  std::vector<std::int64_t> numbers;
  std::size_t at = 0;
  for (std::size_t comma = 0; comma != std::string::npos; at = comma + 1) {
    comma = value.find(',', at);
    const std::string one = value.substr(at, comma == std::string::npos ? comma : comma - at);
    numbers.push_back(static_cast<std::int64_t>(parse_number(rule, one)));
    require(numbers.size() == 1 || (numbers.front() > 0 && numbers.back() > 0),
            "{}={} has a 0 in a list; give numbers from 1 on, like 3,1,2.", rule.setting.name, value);
  }
  return numbers;
}

void check_choice(const Rule& rule, const std::string& value) {
  require(std::find(rule.choices.begin(), rule.choices.end(), value) != rule.choices.end(),
          "{}='{}' is not among its choices: {}.", rule.setting.name, value, fmt::join(rule.choices, ", "));
}

}  // namespace

const std::vector<Setting>& settings() {
  static const auto& table = *[] {
    auto* const result = new std::vector<Setting>;
    for (const Rule& rule : rules()) result->push_back(rule.setting);
    return result;
  }();
  return table;
}

std::string setting(const std::string& name) {
  const Rule* rule = find(name);
  ensure(rule != nullptr, "{} is read but not listed among the settings.", name);
  const char* given = std::getenv(name.c_str());
  return given != nullptr ? given : rule->setting.default_value;
}

double number_setting(const std::string& name) { return parse_number(*find(name), setting(name)); }
std::vector<std::int64_t> numbers_setting(const std::string& name) { return parse_numbers(*find(name), setting(name)); }

std::string choice_setting(const std::string& name) {
  std::string value = setting(name);
  check_choice(*find(name), value);
  return value;
}

void check_settings() {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, "STRETTO_", 8) != 0) continue;
    if (std::strncmp(*entry, "STRETTO_TEST_", 13) == 0) continue;  // tests' own; programs that they start inherit them
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    const Rule* rule = find(name);
    require(rule != nullptr, "{} is set but Stretto has no such setting; stretto-info lists all settings.", name);
    const std::string value = setting(name);
    if (rule->kind == Kind::number || rule->kind == Kind::integer) parse_number(*rule, value);
    if (rule->kind == Kind::integers) parse_numbers(*rule, value);
    if (rule->kind == Kind::choice) check_choice(*rule, value);
  }
}

}  // namespace stretto
