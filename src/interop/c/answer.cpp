#include "interop/c/answer.hpp"

#include <cstdlib>
#include <new>

#include "stretto/build.hpp"

namespace stretto::c {
namespace {

thread_local std::string last_of_this_thread;

strettoResult_t result_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument: return strettoInvalidArgument;
    case ErrorCode::unavailable:
    case ErrorCode::io: return strettoSystemError;
    case ErrorCode::timeout:
    case ErrorCode::peer_lost:
    case ErrorCode::peer_gave_up: return strettoRemoteError;
    case ErrorCode::internal: return strettoInternalError;
  }
  return strettoInternalError;
}

}  // namespace

Failure failure_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PassedOn& group) {
    return group.failure;
  } catch (const CudaFailure& cuda) {
    return {strettoUnhandledCudaError, cuda.what()};
  } catch (const InvalidUsage& usage) {
    return {strettoInvalidUsage, usage.what()};
  } catch (const Error& known) {
    return {result_of(known.code()), known.what()};
  } catch (const std::bad_alloc&) {
    return {strettoSystemError, "This process has no memory left for what a call of the C interface keeps."};
  } catch (const std::exception& other) {
    return {strettoInternalError, other.what()};
  } catch (...) {
    return {strettoInternalError, "Something was thrown that is no exception of C++."};
  }
}

strettoResult_t note(const Failure& failure, strettoComm* comm) noexcept {
  last_of_this_thread = failure.sentence;
  if (comm != nullptr) {
    const std::lock_guard lock(comm->mutex);
    comm->last_error = failure.sentence;
  }
  return failure.result;
}

}  // namespace stretto::c

using namespace stretto::c;
using stretto::require;

const char* strettoGetErrorString(strettoResult_t result) {
  switch (result) {
    case strettoSuccess: return "no error";
    case strettoUnhandledCudaError: return "a call to CUDA failed, or there is no GPU";
    case strettoSystemError: return "a resource of the machine is missing";
    case strettoInternalError: return "a bug in Stretto";
    case strettoInvalidArgument: return "a value is wrong";
    case strettoInvalidUsage: return "the call is wrong at this place";
    case strettoRemoteError: return "another rank was lost, gave up or did not answer";
    case strettoInProgress: return "not done yet";
    case strettoNumResults: break;
  }
  return "no result code of Stretto";
}

const char* strettoGetLastError(strettoComm_t handle) {
  if (handle == nullptr) return last_of_this_thread.c_str();
  const char* text = "";
  const strettoResult_t result = answer_on(handle, [&](const std::shared_ptr<strettoComm>& comm) {
    const std::lock_guard lock(comm->mutex);
    text = comm->last_error.c_str();
  });
  return result == strettoSuccess ? text : last_of_this_thread.c_str();
}

strettoResult_t strettoGetVersion(int* version) {
  return answer([&] {
    require(version != nullptr, "strettoGetVersion got NULL for its result.");
    int parts[3] = {};
    const std::string text = stretto::build_version();
    const char* at = text.c_str();
    for (int& part : parts) {
      char* end = nullptr;
      part = static_cast<int>(std::strtol(at, &end, 10));
      at = *end == '.' ? end + 1 : end;
    }
    *version = STRETTO_VERSION(parts[0], parts[1], parts[2]);
  });
}
