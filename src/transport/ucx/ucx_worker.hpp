#pragma once
#include <ucp/api/ucp.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "transport/bootstrap/job.hpp"
#include "transport/link.hpp"
#include "transport/wait.hpp"

namespace stretto {

// One UCX context and worker per rank: sockets or RDMA to ranks on other hosts. An endpoint is made when its peer is first
// used. Streams of one rank share it under one mutex, which is held only for calls that do not block. A thread sleeps until
// something arrives and then moves it on: a rank that computes must not hold up what it has "sent" already, nor its peers'
// handshakes.
class UcxWorker {
 public:
  // bell: of this rank; rung whenever a request has ended. The pieces that it travels in concern nobody.
  UcxWorker(int rank, int size, Bell& bell);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  Bytes address() const;
  void set_addresses(std::vector<Bytes> addresses) { addresses_ = std::move(addresses); }

  // Requests of UCX: null is "done at once"; errors throw Error(peer_lost) naming the peer.
  void* send(int peer, std::uint64_t tag, const void* data, std::size_t bytes);
  void* receive(int peer, std::uint64_t tag, void* data, std::size_t bytes);
  void notify(int peer, std::uint64_t tag);  // an empty message, for whose end nobody waits
  bool finished(int peer, void* request);    // frees it when it is; one that failed waits for give_up()
  bool progress();                           // true if a request has ended, or a connection

  // Closes the connection at once and waits until its requests have ended.
  void give_up(int peer, std::vector<void*> requests);

 private:
  void serve_events();
  bool take_news();
  ucp_ep_h endpoint(int peer);
  void* checked(int peer, void* request);
  [[noreturn]] void lost(int peer, ucs_status_t status);
  void close_endpoint(ucp_ep_h endpoint);

  struct Peer {
    UcxWorker* worker = nullptr;
    ucp_ep_h endpoint = nullptr;
    ucs_status_t failure = UCS_OK;
  };

  int rank_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_descriptor_ = -1;
  Bell& bell_;
  std::atomic<bool> closing_ = false;
  std::thread server_;
  mutable std::mutex mutex_;
  bool news_ = false;  // a request or a connection has ended, under the mutex
  std::vector<Bytes> addresses_;
  std::vector<Peer> peers_;
};

// A link over it. A message travels in segments of which a few are under way at a time, so that a receiver that
// reduces works on one segment while the next is on the wire.
//
// Over TCP they travel without UCX's rendezvous, whose answers would queue behind the data of the other direction: each
// direction would wait for the other to end. What the receiver has no place for yet lies in its memory, so the sender keeps
// within a window: the receiver says with an empty message when it has taken another part of it.
class UcxLink : public Link {
 public:
  // Added to the tag, which names the sender: no bytes, but the news that it has taken another part of its peer's window.
  static constexpr std::uint64_t taken_flag = std::uint64_t{1} << 23;

  UcxLink(UcxWorker& worker, int peer, std::uint64_t send_tag, std::uint64_t receive_tag)
      : worker_(worker), peer_(peer), send_tag_(send_tag), receive_tag_(receive_tag) {}
  bool progress(Transfer& transfer) override;
  void cancel(Transfer& transfer) override;

 private:
  struct Segment {
    void* request = nullptr;  // null: finished
    std::size_t offset = 0;
    std::size_t bytes = 0;
    std::shared_ptr<std::byte> staging;  // of a receive that reduces
  };
  bool send_some(Transfer& transfer);
  bool receive_some(Transfer& transfer);
  bool may_send(const Transfer& transfer, std::size_t bytes);
  void take(std::size_t bytes);

  UcxWorker& worker_;
  int peer_;
  std::uint64_t send_tag_;
  std::uint64_t receive_tag_;
  std::vector<Segment> sending_;
  std::vector<Segment> receiving_;  // in order
  std::size_t sent_ = 0;            // what it takes of the window, since the start
  std::size_t parts_granted_ = 0;   // of the window, by the receiver
  void* grant_ = nullptr;           // a receive of the next one
  std::size_t taken_ = 0;           // the same of the incoming direction
  std::size_t parts_told_ = 0;
};

}  // namespace stretto
