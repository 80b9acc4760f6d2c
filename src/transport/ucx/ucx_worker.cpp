#include "transport/ucx/ucx_worker.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <utility>

#include "core/fail.hpp"
#include "device/stream/short_time_slice.hpp"
#include "stretto/stream.hpp"
#include "transport/link_broken.hpp"
#include "transport/ucx/ucx_connections.hpp"
#include "transport/ucx/ucx_library.hpp"

namespace stretto {
namespace {

void check_start(ucs_status_t status, const char* what) {
  if (status != UCS_OK) fail(ErrorCode::unavailable, "UCX cannot {}: {}.", what, ucs_status_string(status));
}

// Hosts with InfiniBand or RoCE have it here; the others reach each other over TCP.
bool has_rdma_device() {
  std::error_code none;
  return std::filesystem::directory_iterator("/sys/class/infiniband", none) != std::filesystem::directory_iterator();
}

// UCX aborts the process, or waits for ever, when it gets no descriptor. It takes a dozen, and one or two for each peer.
void provide_descriptors(int ranks) {
  const std::size_t open = open_descriptors().size() - 1;
  const rlim_t needed = open + 16 + 2 * static_cast<rlim_t>(ranks);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= needed) return;
  if (limit.rlim_max < needed) {
    fail(ErrorCode::unavailable,
         "UCX may need {} descriptors among {} ranks, and this process, which has {} open, may have {}; raise the limit "
         "(ulimit -Hn).",
         needed - open, ranks, open, limit.rlim_max);
  }
  limit.rlim_cur = needed;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// UCX hands 8 KiB to the kernel at a time, and a system call takes a core longer than copying these bytes does: where cores
// are few they carry less than the links. Sizes that the user has set stay. Since UCX 1.17 the transport is in the name.
void send_long_segments(ucp_config_t* config) {
  if (std::getenv("UCX_TCP_TX_SEG_SIZE") != nullptr || std::getenv("UCX_TCP_RX_SEG_SIZE") != nullptr) return;
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  ucp_config_modify(config, major > 1 || minor >= 17 ? "TCP_TX_SEG_SIZE" : "TX_SEG_SIZE", "64k");
}

constexpr std::chrono::milliseconds patience_with_connections{1000};

}  // namespace

UcxWorker::UcxWorker(int rank, int size, Bell& bell, std::uint64_t job) : rank_(rank), job_(job), bell_(bell), peers_(size) {
  provide_descriptors(size);
  load_ucx();
  // Stretto's errors about lost peers name them; UCX's log would not.
  if (std::getenv("UCX_LOG_LEVEL") == nullptr) ucs_global_opts_set_value("LOG_LEVEL", "fatal");
  ucp_config_t* config = nullptr;
  check_start(ucp_config_read(nullptr, nullptr, &config), "read its configuration");
  // Ranks of one host have Stretto's shared memory; UCX's would leave files of a killed rank in /dev/shm.
  if (std::getenv("UCX_TLS") == nullptr) ucp_config_modify(config, "TLS", "^sm");
  if (!has_rdma_device()) {
    // See UcxLink. Besides, UCX 1.13 aborts the process if a connection breaks while it sends data without a copy.
    if (std::getenv("UCX_RNDV_THRESH") == nullptr) ucp_config_modify(config, "RNDV_THRESH", "inf");
    if (std::getenv("UCX_ZCOPY_THRESH") == nullptr) ucp_config_modify(config, "ZCOPY_THRESH", "inf");
    send_long_segments(config);
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  params.estimated_num_eps = static_cast<std::size_t>(size);
  const ucs_status_t status = ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  ucp_config_release(config);
  check_start(status, "start");

  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // calls come from several threads, one at a time
  check_start(ucp_worker_create(context_, &worker_params, &worker_), "create a worker");
  listeners_.wait_for_words();
  check_start(ucp_worker_get_efd(worker_, &event_descriptor_), "give an event descriptor");
  server_ = std::thread([this] { serve_events(); });
}

UcxWorker::~UcxWorker() {
  closing_ = true;
  ucp_worker_signal(worker_);
  server_.join();
  shut_down_stuck_connections(event_descriptor_, patience_with_connections);
  {
    const std::lock_guard lock(mutex_);
    for (UcxPeer& peer : peers_) {
      if (peer.endpoint != nullptr) close_endpoint(peer.endpoint);
    }
  }
  ucp_worker_destroy(worker_);
  ucp_cleanup(context_);
}

Bytes UcxWorker::address() const {
  ucp_address_t* address = nullptr;
  std::size_t length = 0;
  check_start(ucp_worker_get_address(worker_, &address, &length), "tell its address");
  const auto* bytes = reinterpret_cast<const std::byte*>(address);
  Bytes copy(bytes, bytes + length);
  ucp_worker_release_address(worker_, address);
  return copy;
}

std::string UcxWorker::obstacle_to(int peer) {
  const std::lock_guard lock(mutex_);
  try {
    endpoint(peer);
    return "";
  } catch (const Error& error) {
    return fmt::format(
        "{} UCX uses these interfaces of rank {}'s host: {}. Connect the one that leads to rank {}'s host; "
        "UCX_NET_DEVICES and UCX_TLS may exclude it.",
        error.what(), rank_, interfaces(), peer);
  }
}

// UCX lists its network interfaces only in its own report.
std::string UcxWorker::interfaces() const {
  char* text = nullptr;
  std::size_t length = 0;
  FILE* const file = open_memstream(&text, &length);
  if (file == nullptr) return "unknown";
  ucp_context_print_info(context_, file);
  std::fclose(file);
  std::istringstream lines(std::string(text, length));
  std::free(text);
  std::string names;
  for (std::string line; std::getline(lines, line);) {
    // "#            resource 1 : md 0 dev 0 flags -- tcp/eth0"
    if (line.find(" resource ") == std::string::npos || line.find('/') == std::string::npos) continue;
    names += (names.empty() ? "" : ", ") + line.substr(line.rfind(' ') + 1);
  }
  return names.empty() ? "none" : names;
}

void* UcxWorker::send(int peer, std::uint64_t tag, const void* data, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = [](void*, ucs_status_t, void* worker) { static_cast<UcxWorker*>(worker)->news_ = true; };
  params.user_data = this;
  return checked(peer, ucp_tag_send_nbx(endpoint(peer), data, bytes, sealed(tag), &params));
}

void* UcxWorker::receive(int peer, std::uint64_t tag, void* data, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  endpoint(peer);  // so that the loss of a peer that only sends to us is noticed too
  ucp_request_param_t params{};
  // Only requests have the length of the message: UCX 1.13 does not return it if a receive is complete at once.
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  params.cb.recv = [](void*, ucs_status_t, const ucp_tag_recv_info_t*, void* worker) {
    static_cast<UcxWorker*>(worker)->news_ = true;
  };
  params.user_data = this;
  return checked(peer, ucp_tag_recv_nbx(worker_, data, bytes, sealed(tag), ~std::uint64_t{0}, &params));
}

void UcxWorker::notify(int peer, std::uint64_t tag) {
  const std::lock_guard lock(mutex_);
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK;
  params.cb.send = [](void* request, ucs_status_t, void*) { ucp_request_free(request); };
  checked(peer, ucp_tag_send_nbx(endpoint(peer), nullptr, 0, sealed(tag), &params));
}

bool UcxWorker::received(int peer, void* request, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  ucp_tag_recv_info_t info{};
  const ucs_status_t status = ucp_tag_recv_request_test(request, &info);
  if (status == UCS_INPROGRESS) {
    if (peers_[peer].failure != UCS_OK) lost(peer, peers_[peer].failure);
    return false;
  }
  if (status == UCS_ERR_MESSAGE_TRUNCATED) refuse_length(peer, "more than", bytes);
  if (status != UCS_OK) lost(peer, status);
  if (info.length != bytes) refuse_length(peer, fmt::format("{} bytes instead of", info.length), bytes);
  ucp_request_free(request);
  return true;
}

void UcxWorker::refuse_length(int peer, const std::string& sent, std::size_t expected) {
  fail(ErrorCode::invalid_argument,
       "Rank {} sent {} the {} bytes that rank {} expects: their calls do not match; STRETTO_CHECK=1 compares them.", peer,
       sent, expected, rank_);
}

bool UcxWorker::finished(int peer, void* request) {
  const std::lock_guard lock(mutex_);
  const ucs_status_t status = ucp_request_check_status(request);
  if (status == UCS_INPROGRESS) {
    if (peers_[peer].failure != UCS_OK) lost(peer, peers_[peer].failure);
    return false;
  }
  if (status != UCS_OK) lost(peer, status);
  ucp_request_free(request);
  return true;
}

bool UcxWorker::progress() {
  const std::lock_guard lock(mutex_);
  ucp_worker_progress(worker_);
  return take_news();
}

// Called with the mutex held. Rings the bell, since the request may be of another stream, whose thread sleeps.
bool UcxWorker::take_news() {
  if (!news_) return false;
  news_ = false;
  bell_.ring();
  return true;
}

void UcxWorker::give_up(int peer, std::vector<void*> requests) {
  {
    const std::lock_guard lock(mutex_);
    for (void* request : requests) ucp_request_cancel(worker_, request);
  }
  // A cancelled receive ends at once if nothing has arrived for it; a send ends with the handshake or with the loss of the
  // peer. Closing the endpoint in mid-handshake would end sends too, but UCX 1.13 may abort the process then, so that step
  // comes last. Requests that do not end even then had travelled in part: UCX has forgotten them, and without a connection
  // nothing moves them any more.
  double to_close = now_seconds() + 1;
  while (true) {
    const std::lock_guard lock(mutex_);
    UcxPeer& state = peers_[peer];
    ucp_worker_progress(worker_);
    std::erase_if(requests, [](void* request) {
      const bool ended = ucp_request_check_status(request) != UCS_INPROGRESS;
      if (ended) ucp_request_free(request);
      return ended;
    });
    if (requests.empty()) return;
    const double now = now_seconds();
    if (state.failure != UCS_OK) to_close = std::min(to_close, now);
    if (now >= to_close && state.endpoint != nullptr) {
      close_endpoint(std::exchange(state.endpoint, nullptr));
      if (state.failure == UCS_OK) state.failure = UCS_ERR_CANCELED;
    }
    if (now > to_close + 0.2) return;
  }
}

void UcxWorker::serve_events() {
  run_promptly();
  pthread_setname_np(pthread_self(), "ucx events");
  while (!closing_) {
    bool armed = false;
    {
      const std::lock_guard lock(mutex_);
      while (ucp_worker_progress(worker_) != 0) {
      }
      take_news();
      armed = ucp_worker_arm(worker_) == UCS_OK;  // otherwise something has happened since
    }
    if (!armed) continue;
    pollfd event{event_descriptor_, POLLIN, 0};
    poll(&event, 1, -1);
  }
}

ucp_ep_h UcxWorker::endpoint(int peer) {
  UcxPeer& state = peers_[peer];
  if (state.failure != UCS_OK) lost(peer, state.failure);
  if (state.endpoint != nullptr) return state.endpoint;
  // If the peer has connected to this rank already, UCX 1.13 uses that connection, and aborts the process if the peer was
  // killed meanwhile and UCX has not noticed. Progress just before makes that unlikely.
  while (ucp_worker_progress(worker_) != 0) {
  }
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(addresses_[peer].data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = [](void* argument, ucp_ep_h, ucs_status_t failure) {
    auto* const broken = static_cast<UcxPeer*>(argument);
    broken->failure = failure;
    broken->worker->news_ = true;
  };
  state.worker = this;
  params.err_handler.arg = &state;
  const ucs_status_t status = ucp_ep_create(worker_, &params, &state.endpoint);
  if (status != UCS_OK) lost(peer, status);
  return state.endpoint;
}

void* UcxWorker::checked(int peer, void* request) {
  if (UCS_PTR_IS_ERR(request)) lost(peer, UCS_PTR_STATUS(request));
  return request;
}

void UcxWorker::lost(int peer, ucs_status_t status) {
  throw LinkBroken(peer, ErrorCode::peer_lost,
                   fmt::format("The connection from rank {} to rank {} broke: {}.", rank_, peer, ucs_status_string(status)));
}

void UcxWorker::close_endpoint(ucp_ep_h endpoint) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* request = ucp_ep_close_nbx(endpoint, &params);
  if (request == nullptr || UCS_PTR_IS_ERR(request)) return;
  const double deadline = now_seconds() + 5;
  while (ucp_request_check_status(request) == UCS_INPROGRESS && now_seconds() < deadline) ucp_worker_progress(worker_);
  ucp_request_free(request);
}

}  // namespace stretto
