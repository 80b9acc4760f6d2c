#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/files/scratch_file.hpp"
#include "stretto/overlap/file_gate.hpp"
#include "stretto/stream.hpp"
#include "stretto/tensor.hpp"

namespace stretto {

// A block of bytes for each unit of parameters in a file of this rank (ZeRO-Infinity; Rajbhandari et al. 2021), such as the
// unit's share of the optimizer's state. There are three ways to a block.
//
// An update goes through the units. Three buffers hold the block that is updated, the next one, which is being read, and the
// one before, which is being written:
//
//   file.begin(order);
//   for each unit in the order:
//     Tensor block = file.take(unit);   // blocks until it has been read
//     ... update ...
//     file.give_back(unit);             // its write begins
//   file.end();                         // blocks until all is written; optional
//
// With Options::two_places, such a loop may write to each block's other place, and the block stays as it was until accept().
// Or the loop may read the other places and write nothing.
//
// read() and write() move a block into and out of the caller's memory(), in streams of the file's own.
//
// mapped() is the block in the mapped file, for checkpoints and other access out of turn; the caller must call touch()
// before. release() gives back the memory that the access has taken; a caller that goes through all units must call it
// behind each.
//
// One thread at a time may use an object, with two exceptions. Any thread may call has() and release(). While a loop writes
// nothing, another thread may move single blocks: it may read from any place, and write to places that the loop does not
// read.
class UnitFile {
 public:
  struct Options {
    bool overlap = true;                  // false: the caller waits for each read and write
    bool two_places = false;              // the file has room for two of each block
    std::string name = "state";           // of the file's content, for errors
    std::shared_ptr<FileGate> gate = {};  // reads and writes pass it; null: there is none
  };
  // bytes: the length of each unit's block, 0 for a unit that has none. Throws as ScratchFile does.
  UnitFile(const std::string& directory, std::vector<std::int64_t> bytes, const Options& options);
  UnitFile(const std::string& directory, std::vector<std::int64_t> bytes)
      : UnitFile(directory, std::move(bytes), Options()) {}
  ~UnitFile();

  bool has(std::size_t unit) const { return bytes_[unit] > 0; }

  enum class Place : std::uint8_t { same, other };
  // The last loop's writes may still be in flight: begin() waits only for those of the buffers that it needs. to, from: the
  // places that the loop writes and reads.
  void begin(std::vector<std::size_t> order, Place to = Place::same, Place from = Place::same);
  Tensor take(std::size_t unit);  // empty for a unit that has no block
  void give_back(std::size_t unit, bool writes = true);
  void end();
  // The blocks that the last loop has written to other places take the place of the old ones. Returns their units.
  std::vector<std::size_t> accept();

  // Memory for a block: of type u8 and as long as the block, with room behind it up to the end of the block's last page.
  Tensor memory(std::size_t unit) const;
  // A read waits for the writes before it. The Work holds the memory.
  Work read(std::size_t unit, const Tensor& to);
  Work write(std::size_t unit, const Tensor& from, const Work& after);

  // Exchanges the two places of every block, for all calls from now on.
  void exchange();
  Tensor mapped(std::size_t unit);
  Tensor mapped_other(std::size_t unit);  // the other place
  void touch();                           // waits for writes in flight
  void release(std::size_t unit);         // both places
  void release();

  const std::string& name() const { return name_; }
  bool is_direct() const { return file_.is_direct(); }
  bool has_uring() const { return file_.has_uring(); }
  std::int64_t bytes() const { return file_bytes_; }
  static std::int64_t buffer_bytes(const std::vector<std::int64_t>& bytes);  // of all buffers of updates
  struct Traffic {
    std::int64_t read = 0, written = 0;  // bytes, in whole blocks of the file
  };
  Traffic traffic() const { return {read_, written_bytes_}; }

 private:
  static constexpr int buffers = 3;
  struct Buffer {
    Tensor memory;  // aligned, of the largest block
    Work read, written;
  };
  void read_next();
  void pass_gate(bool writes, std::int64_t offset, std::int64_t bytes) const;
  Work read_at(std::int64_t offset, std::size_t unit, const Tensor& to, const Work& after);
  Work write_at(std::int64_t offset, std::size_t unit, const Tensor& from, const Work& after);

  std::string name_;
  std::shared_ptr<FileGate> gate_;
  std::vector<std::int64_t> bytes_, offsets_;
  std::vector<std::int64_t> others_;  // offsets of other places
  std::int64_t file_bytes_ = 0;
  ScratchFile file_;
  std::array<Buffer, buffers> buffers_;
  std::vector<Work> written_;         // the last write of each unit's block
  std::vector<Work> others_written_;  // the last writes to other places
  std::vector<std::size_t> order_;
  std::size_t taken_ = 0, reading_ = 0;             // places in the order
  Place place_ = Place::same, from_ = Place::same;  // the loop writes the one and reads the other
  Stream in_, out_;
  std::atomic<std::int64_t> read_ = 0, written_bytes_ = 0;
};

// A block, or memory() of one, as elements of a type.
inline Tensor elements_in(const Tensor& block, DType dtype) {
  return block.view(std::size_t{0}, {block.size() / static_cast<std::int64_t>(size_of(dtype))}, dtype);
}

}  // namespace stretto
