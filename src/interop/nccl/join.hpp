#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "interop/nccl/communicators.hpp"

// How a communicator comes to be: the ranks meet by Stretto, tell each other which GPUs they use, and decide alike whose it
// is. Where each rank has a GPU it is NCCL's: rank 0 makes an id with NCCL, and the program gets NCCL's handle.
namespace stretto::nccl_door {

// A configuration that outlives the caller's.
class KeptConfig {
 public:
  explicit KeptConfig(ncclConfig_t* config);
  KeptConfig(const KeptConfig&) = delete;
  KeptConfig& operator=(const KeptConfig&) = delete;
  ncclConfig_t* get() { return bytes_.empty() ? given_ : reinterpret_cast<ncclConfig_t*>(bytes_.data()); }
  const char* name() const { return name_ ? name_->c_str() : nullptr; }

 private:
  ncclConfig_t* given_;
  std::vector<char> bytes_;  // of whatever version of NCCL's header; none where it is no configuration
  std::optional<std::string> name_, net_;
};

struct Join {
  const char* function = nullptr;  // for the report
  ncclComm_t* comm = nullptr;      // where the program wants it
  int nranks = 0;
  ncclUniqueId id{};  // one of ours
  int rank = 0;
  int device = 0;
  std::shared_ptr<KeptConfig> config;  // null: none was given
  ncclResult_t result = ncclSuccess;   // ncclInProgress where NCCL goes on by itself
};

// Collective, for all ranks that one thread makes together, of whatever communicators. Returns the first result that is no
// success; what could not be made is NCCL_COMM_NULL.
ncclResult_t join(std::vector<Join>& joins);

}  // namespace stretto::nccl_door
