#pragma once
#include <ucp/api/ucp.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/split_mix.hpp"
#include "transport/bootstrap/job.hpp"
#include "transport/link.hpp"
#include "transport/ucx/ucx_listeners.hpp"
#include "transport/wait.hpp"

namespace stretto {

// The UCX context and worker of one rank: sockets or RDMA to ranks on other hosts. An endpoint is made when its peer is
// first used. The streams of one rank share the worker under one mutex, which is held only for calls that do not block. A
// thread of its own sleeps until something arrives and then moves it on: a rank that computes must hold up neither messages
// that it has "sent" already, nor its peers' handshakes.
class UcxWorker {
 public:
  // bell: this rank's; it is rung when a request has ended, not for the pieces in which it travels. job: its identity, which
  // makes the tags of messages unguessable for strangers.
  UcxWorker(int rank, int size, Bell& bell, std::uint64_t job);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  Bytes address() const;
  void set_addresses(std::vector<Bytes> addresses) { addresses_ = std::move(addresses); }
  // From now on UCX's ports of this rank get connections from hosts of these addresses only.
  void hear_only(const std::set<std::uint32_t>& addresses) { listeners_.hear_only(addresses); }
  // A sentence that says why this rank cannot reach the peer; empty if it can.
  std::string obstacle_to(int peer);

  // Return UCX's requests; null: done at once. They throw LinkBroken.
  void* send(int peer, std::uint64_t tag, const void* data, std::size_t bytes);
  void* receive(int peer, std::uint64_t tag, void* data, std::size_t bytes);
  // Like finished(), for a receive of `bytes` bytes; throws Error(invalid_argument) if the message has another length.
  bool received(int peer, void* request, std::size_t bytes);
  void notify(int peer, std::uint64_t tag);  // sends an empty message; the caller cannot wait for its end
  bool finished(int peer, void* request);    // frees a finished request; one that failed stays until give_up()
  bool progress();                           // returns true if a request or a connection has ended

  // Cancels the requests and waits until they have ended. Closes the connection if they have not within a second, and gives
  // up those that do not end even then.
  void give_up(int peer, std::vector<void*> requests);

 private:
  void serve_events();
  bool take_news();
  ucp_ep_h endpoint(int peer);
  void* checked(int peer, void* request);
  [[noreturn]] void lost(int peer, ucs_status_t status);
  [[noreturn]] void refuse_length(int peer, const std::string& sent, std::size_t expected);
  void close_endpoint(ucp_ep_h endpoint);

  struct UcxPeer {
    UcxWorker* worker = nullptr;
    ucp_ep_h endpoint = nullptr;
    ucs_status_t failure = UCS_OK;
  };

  // The tag that is sent: a different one for each tag, and secret like the job's identity.
  std::uint64_t sealed(std::uint64_t tag) const { return split_mixed(tag ^ job_); }
  std::string interfaces() const;

  int rank_;
  std::uint64_t job_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  UcxListeners listeners_;
  int event_descriptor_ = -1;
  Bell& bell_;
  std::atomic<bool> closing_ = false;
  std::thread server_;
  mutable std::mutex mutex_;
  bool news_ = false;  // a request or a connection has ended, under the mutex
  std::vector<Bytes> addresses_;
  std::vector<UcxPeer> peers_;
};

// A link over UCX. A message travels in segments, a few of which are in flight at a time, so that a receiver that reduces
// works on one segment while the next is on the wire.
//
// Over TCP segments travel without UCX's rendezvous, whose answers would queue behind the data of the other direction: each
// direction would wait for the other to end. Segments that the receiver has not asked for yet lie in its memory, so the
// sender keeps within a window: the receiver tells it with an empty message when it has taken another part of the window.
class UcxLink : public Link {
 public:
  // Added to the tag, it marks an empty message by which its sender says that it has taken another part of its peer's
  // window.
  static constexpr std::uint64_t taken_flag = std::uint64_t{1} << 20;

  UcxLink(UcxWorker& worker, int peer, std::uint64_t send_tag, std::uint64_t receive_tag)
      : worker_(worker), peer_(peer), send_tag_(send_tag), receive_tag_(receive_tag) {}
  bool progress(Transfer& transfer) override;
  void cancel(Transfer& transfer) override;

 private:
  struct UcxSegment {
    void* request = nullptr;  // null: finished
    std::size_t offset = 0;
    std::size_t bytes = 0;
    std::shared_ptr<std::byte> staging;  // for a receive that reduces
  };
  bool send_some(Transfer& transfer);
  bool receive_some(Transfer& transfer);
  bool may_send(const Transfer& transfer, std::size_t bytes);
  void take(std::size_t bytes);

  UcxWorker& worker_;
  int peer_;
  std::uint64_t send_tag_;
  std::uint64_t receive_tag_;
  std::vector<UcxSegment> sending_;
  std::vector<UcxSegment> receiving_;  // in order
  std::size_t sent_ = 0;               // bytes counted against the window, since the start
  std::size_t parts_granted_ = 0;      // parts of the window that the receiver has taken
  void* grant_ = nullptr;              // the receive of its next notice
  std::size_t taken_ = 0;              // bytes of the incoming direction, counted in the same way
  std::size_t parts_told_ = 0;         // notices that this rank has sent
};

}  // namespace stretto
