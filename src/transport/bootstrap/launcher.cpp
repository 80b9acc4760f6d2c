#include "transport/bootstrap/launcher.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "core/fail.hpp"
#include "core/setting_values.hpp"
#include "stretto/launch.hpp"

namespace stretto {
namespace {

struct Variables {
  const char* launcher;
  const char* rank;
  const char* size;
  std::array<const char*, 2> job;  // variables with the job's number
  bool is_mpi;
};
constexpr std::array<Variables, 5> known{
    {{"torchrun", "RANK", "WORLD_SIZE", {"TORCHELASTIC_RUN_ID", nullptr}, false},
     {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", {"PMIX_NAMESPACE", nullptr}, true},
     {"PMI", "PMI_RANK", "PMI_SIZE", {nullptr, nullptr}, true},
     {"MVAPICH2", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", {nullptr, nullptr}, true},
     {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", {"SLURM_JOB_ID", "SLURM_STEP_ID"}, false}}};

// Empty if the launcher has given the job no number. torchrun's is "none" unless the user has given one.
std::string name_of_job(const Variables& variables) {
  std::string name;
  for (const char* const part : variables.job) {
    const char* const value = part != nullptr ? std::getenv(part) : nullptr;
    if (value != nullptr && std::string(value) != "none") name += fmt::format(" {}={}", part, value);
  }
  return name.empty() ? name : variables.launcher + name;
}

int integer_variable(const char* name) {
  const char* given = std::getenv(name);
  const std::string text = given != nullptr ? given : "";
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  require(!text.empty() && *end == '\0' && value >= 0, "{}='{}' is no whole number.", name, text);
  require(value < 1L << 30, "{}='{}' is too large.", name, text);
  return static_cast<int>(value);
}

const Variables* launcher_of_mpi() {
  const auto found =
      std::ranges::find_if(known, [](const Variables& each) { return each.is_mpi && std::getenv(each.size) != nullptr; });
  return found != known.end() ? &*found : nullptr;
}

// Shortened for a sentence: "Open MPI v4.1.4, package: ..." and "MPICH Version:      4.0.2" are too long.
std::string short_name_of_mpi(const std::string& full) {
  std::string name;
  for (const char letter : full.substr(0, full.find_first_of(",\n"))) {
    const bool is_space = letter == ' ' || letter == '\t';
    if (!is_space || !name.ends_with(' ')) name += is_space ? ' ' : letter;
  }
  return name;
}

}  // namespace

int mpirun_ranks() {
  const Variables* const variables = launcher_of_mpi();
  return variables != nullptr ? integer_variable(variables->size) : 0;
}

void require_alone(const std::string& mpi_version) {
  // Of Slurm's variables only this one belongs to a step; a batch script has the others, too.
  const Variables* const variables = launcher_of_mpi();
  const char* const name = variables != nullptr ? variables->size : "SLURM_STEP_NUM_TASKS";
  const int ranks = std::getenv(name) != nullptr ? integer_variable(name) : 1;
  const std::string mpi = short_name_of_mpi(mpi_version);
  const char* const on_debian = mpi.starts_with("Open MPI") ? " (on Debian: mpirun.openmpi)"
                                : mpi.starts_with("MPICH")  ? " (on Debian: mpirun.mpich)"
                                                            : "";
  require(ranks <= 1,
          "{}={}: a launcher started {} ranks, but {}, the MPI of this program, sees one, and each would run alone: that "
          "launcher belongs to another MPI. Start the program with the mpirun of {}{}.",
          name, ranks, ranks, mpi, mpi, on_debian);
}

std::optional<LaunchedAs> launched_as() {
  for (const Variables& variables : known) {
    if (std::getenv(variables.rank) == nullptr || std::getenv(variables.size) == nullptr) continue;
    LaunchedAs as;
    as.launcher = variables.launcher;
    as.rank = integer_variable(variables.rank);
    as.size = integer_variable(variables.size);
    as.job = name_of_job(variables);
    require(as.rank < as.size, "{}={} is not below {}={}.", variables.rank, as.rank, variables.size, as.size);
    if (as.size == 1) return as;
    const char* host = std::getenv("MASTER_ADDR");
    require(host != nullptr && std::getenv("MASTER_PORT") != nullptr,
            "{} ranks were started by {}, but MASTER_ADDR and MASTER_PORT do not tell where to meet; set both{}.", as.size,
            as.launcher,
            variables.is_mpi
                ? ", or connect with stretto/mpi.hpp, which asks MPI (Stretto's programs do in a build with MPI)"
                : "");
    as.host = host;
    as.port = static_cast<int>(number_setting("STRETTO_PORT"));
    if (as.port == 0) {
      as.port = integer_variable("MASTER_PORT");
      // torchrun's own store may hold that port already.
      const char* store = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
      if (store != nullptr && std::string(store) == "True") ++as.port;
    }
    require(as.port > 0 && as.port < 65536, "Port {} is outside 1..65535; set MASTER_PORT or STRETTO_PORT.", as.port);
    return as;
  }
  const char* const rank = std::getenv("RANK");
  const char* const size = std::getenv("WORLD_SIZE");
  require(rank == nullptr,
          "RANK='{}' is set and WORLD_SIZE is not: this rank would run alone; set WORLD_SIZE, or unset RANK.",
          rank != nullptr ? rank : "");
  require(size == nullptr || std::string(size) == "1",
          "WORLD_SIZE='{}' is set and RANK is not: this rank would run alone; set RANK, or unset WORLD_SIZE.",
          size != nullptr ? size : "");
  return std::nullopt;
}

}  // namespace stretto
