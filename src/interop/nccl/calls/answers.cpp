#include "interop/nccl/calls/answers.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "interop/nccl/libraries/real_nccl.hpp"

namespace stretto::nccl_door {
namespace {

static_assert(static_cast<int>(strettoUnhandledCudaError) == static_cast<int>(ncclUnhandledCudaError));
static_assert(static_cast<int>(strettoSystemError) == static_cast<int>(ncclSystemError));
static_assert(static_cast<int>(strettoInternalError) == static_cast<int>(ncclInternalError));
static_assert(static_cast<int>(strettoInvalidArgument) == static_cast<int>(ncclInvalidArgument));
static_assert(static_cast<int>(strettoInvalidUsage) == static_cast<int>(ncclInvalidUsage));
static_assert(static_cast<int>(strettoRemoteError) == static_cast<int>(ncclRemoteError));

struct LastError {
  std::string sentence;
  bool is_ours = false;
};
thread_local LastError last;

ncclResult_t result_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument: return ncclInvalidArgument;
    case ErrorCode::unavailable:
    case ErrorCode::io: return ncclSystemError;
    case ErrorCode::timeout:
    case ErrorCode::peer_lost:
    case ErrorCode::peer_gave_up: return ncclRemoteError;
    case ErrorCode::internal: return ncclInternalError;
  }
  return ncclInternalError;
}

bool nccl_debug() {
  static const bool on = [] {
    const char* const level = std::getenv("NCCL_DEBUG");
    return level != nullptr && std::strcmp(level, "NONE") != 0 && *level != '\0';
  }();
  return on;
}

}  // namespace

ncclResult_t refuse_with(ncclResult_t result, const std::string& sentence) {
  last = {sentence, true};
  if (nccl_debug()) std::fprintf(stderr, "stretto-nccl: %s\n", sentence.c_str());
  return result;
}

ncclResult_t answer_of(strettoResult_t result) {
  if (result == strettoSuccess) return ncclSuccess;
  return refuse_with(static_cast<ncclResult_t>(result), strettoGetLastError(nullptr));
}

void check(strettoResult_t result) {
  if (result != strettoSuccess) throw Refusal(static_cast<ncclResult_t>(result), strettoGetLastError(nullptr));
}

ncclResult_t refuse_current_exception() noexcept {
  try {
    throw;
  } catch (const Refusal& refusal) {
    return refuse_with(refusal.result(), refusal.what());
  } catch (const Error& error) {
    return refuse_with(result_of(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return ncclSystemError;
  } catch (const std::exception& error) {
    return refuse_with(ncclInternalError, error.what());
  } catch (...) {
    return ncclInternalError;
  }
}

const char* last_sentence() { return last.is_ours ? last.sentence.c_str() : nullptr; }
void keep_last_sentence(const std::string& sentence) { last = {sentence, true}; }
void leave_last_error_to_nccl() { last.is_ours = false; }

}  // namespace stretto::nccl_door
