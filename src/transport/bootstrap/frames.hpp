#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "transport/bootstrap/handshake.hpp"
#include "transport/bootstrap/job.hpp"
#include "transport/bootstrap/socket.hpp"

namespace stretto {

// After the handshake, ranks send each other frames.
enum class FrameKind : std::uint32_t {
  contribution,  // to rank 0: this rank's part of an exchange
  result,        // from rank 0: all parts
  failed,        // either way: the job has failed; the code, and the sentence
  bye,           // to rank 0: this rank leaves
  all_left,      // from rank 0: all ranks have said bye
  alive,         // to rank 0, from time to time
  left,          // from rank 0: numbers of ranks that have said bye since the last such frame
  lost,          // from rank 0: a rank that the job does without, and how it was lost
  silent,        // from rank 0, from time to time: a SilentRank for each rank that it does not hear
  question,      // through rank 0: what is this rank doing?
  answer,        // through rank 0
  remain,        // to rank 0: this rank goes on in a smaller job without these ranks
  shrunk,        // from rank 0: the smaller job's identity, and the ranks that are in it
};

// One rank's connection. No call waits: a side that has stopped, even in the middle of a frame, holds up no other rank.
// Bytes that the socket does not take at once are kept until flush().
class FrameConnection {
 public:
  FrameConnection(Socket socket, const RankIntroduction& who);

  const RankIntroduction& who() const { return who_; }
  void renumber(int rank, int size);  // in a smaller job
  int descriptor() const { return socket_.descriptor(); }
  double heard_at() const { return heard_at_; }  // in now_seconds()
  bool open() const { return open_; }

  // From any thread. Returns false if some bytes wait for flush().
  bool send(FrameKind kind, const void* data, std::size_t bytes);
  bool has_unsent() const { return unsent_; }
  void flush();
  void end_writing();  // nothing is sent any more

  // Reads the bytes that have come, and calls take() for each complete frame. Memory grows with these bytes, not with the
  // length that a frame announces. Returns false if the connection has ended: end_error() is the errno, 0 if the other side
  // has closed it. Throws Error(internal) on bytes that are no frame.
  bool receive(const std::function<void(FrameKind, Bytes)>& take);
  int end_error() const { return end_error_; }
  void close();

 private:
  Socket socket_;
  RankIntroduction who_;
  std::atomic<double> heard_at_;
  std::atomic<bool> open_ = true;
  int end_error_ = 0;
  Bytes received_;
  std::mutex writing_;  // guards socket_ against close(), and outgoing_
  Bytes outgoing_;
  std::atomic<bool> unsent_ = false;
};

}  // namespace stretto
