#pragma once
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "core/files/scratch_file.hpp"
#include "stretto/stream.hpp"
#include "stretto/tensor.hpp"

namespace stretto {

// The state of an optimizer in a file of this rank (ZeRO-Infinity; Rajbhandari et al. 2021), a block for each unit of
// parameters. During an update, three buffers hold the block that is updated, the next one, which is being read, and the one
// before, which is being written.
//
//   state.begin(order);
//   for each unit in the order:
//     Tensor block = state.take(unit);   // blocks until it has been read
//     ... update ...
//     state.give_back(unit);             // its write begins
//
// Writes end behind the caller's back; the next begin() and touch() wait for them. Only one thread may use an object.
class OffloadedState {
 public:
  // bytes: of each unit's block; 0 where it has none. Throws as ScratchFile does.
  OffloadedState(const std::string& directory, std::vector<std::int64_t> bytes);
  ~OffloadedState();

  void begin(std::vector<std::size_t> order);
  Tensor take(std::size_t unit);
  void give_back(std::size_t unit);

  // A unit's block in the mapped file, for checkpoints and whoever else reads or writes the state between updates, behind
  // touch(). The next begin() gives back the memory that such accesses have taken.
  Tensor mapped(std::size_t unit);
  void touch();

  bool is_direct() const { return file_.is_direct(); }
  bool has_uring() const { return file_.has_uring(); }
  std::int64_t bytes() const { return file_bytes_; }
  static std::int64_t buffer_bytes(const std::vector<std::int64_t>& bytes);  // of all buffers
  struct Traffic {
    std::int64_t read = 0, written = 0;  // bytes, in whole blocks of the file
  };
  Traffic traffic() const { return traffic_; }

 private:
  static constexpr int buffers = 3;
  struct Buffer {
    Tensor memory;  // u8, aligned
    Work read, written;
  };
  void read_next();

  std::vector<std::int64_t> bytes_, offsets_;
  std::int64_t file_bytes_ = 0;
  ScratchFile file_;
  std::array<Buffer, buffers> buffers_;
  std::vector<std::size_t> order_;
  std::size_t taken_ = 0, reading_ = 0;  // places in the order
  bool touched_ = false;
  Stream in_{"state in"}, out_{"state out"};
  Traffic traffic_;
};

}  // namespace stretto
