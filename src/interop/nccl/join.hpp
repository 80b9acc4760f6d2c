#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "interop/nccl/communicators.hpp"

// Makes communicators. The ranks meet through Stretto, tell each other which GPUs they use, and all take the same decision
// on which library serves the communicator. If each rank has its own GPU, NCCL does: rank 0 gets an id from NCCL, and the
// program gets NCCL's handle.
namespace stretto::nccl_door {

// A copy of a configuration. It outlives the caller's.
class KeptConfig {
 public:
  explicit KeptConfig(ncclConfig_t* config);
  KeptConfig(const KeptConfig&) = delete;
  KeptConfig& operator=(const KeptConfig&) = delete;
  ncclConfig_t* get() { return bytes_.empty() ? given_ : reinterpret_cast<ncclConfig_t*>(bytes_.data()); }
  const char* name() const { return name_ ? name_->c_str() : nullptr; }

 private:
  ncclConfig_t* given_;
  std::vector<char> bytes_;  // a struct of any version of NCCL's header; empty if its size is invalid
  std::optional<std::string> name_, net_;
};

struct Join {
  const char* function = nullptr;  // for the report
  ncclComm_t* comm = nullptr;      // the program's result pointer
  int nranks = 0;
  ncclUniqueId id{};  // an id that the door made
  int rank = 0;
  int device = 0;
  std::shared_ptr<KeptConfig> config;  // null if the caller gave none
  ncclResult_t result = ncclSuccess;   // ncclInProgress if NCCL continues asynchronously
};

// Collective. `joins` are all ranks that one thread makes together, of one communicator or several. Returns the first result
// that is not ncclSuccess. A handle that could not be made is NCCL_COMM_NULL.
ncclResult_t join(std::vector<Join>& joins);

}  // namespace stretto::nccl_door
