#include "device/memory/range.hpp"

#if defined(STRETTO_HAVE_CUDA) && __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

namespace stretto {
namespace {

// Null if no profiler is attached to the process.
nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t ours = nvtxDomainCreateA("stretto");
  return ours;
}

}  // namespace

bool profiler_listens() { return domain() != nullptr; }

void ProfilerRange::begin(const std::string& text) {
  nvtxEventAttributes_t attributes = {};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = text.c_str();  // NVTX copies it
  nvtxDomainRangePushEx(domain(), &attributes);
}

void ProfilerRange::end() { nvtxDomainRangePop(domain()); }

}  // namespace stretto

#else

namespace stretto {

bool profiler_listens() { return false; }
void ProfilerRange::begin(const std::string& /*text*/) {}
void ProfilerRange::end() {}

}  // namespace stretto

#endif
