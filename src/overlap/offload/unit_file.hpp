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
// With Options::two_places, such a loop may write the blocks to their other place: they are as before until accept(). Or it
// may read them there, and write nothing.
//
// read() and write() move a block into and out of the caller's memory(), in streams of the file's own.
//
// mapped() is the block in the mapped file, for checkpoints and other access out of turn; call touch() before. release()
// gives back the memory that such an access has taken; a caller that goes through all units must call it behind each.
//
// Only one thread may use an object at a time, such as the one of an update apart, with two exceptions: any may call has()
// and release(), and while a loop writes nothing, another thread may move single blocks to and from places that the loop
// does not read, and read them from those that it does.
class UnitFile {
 public:
  struct Options {
    bool overlap = true;                  // false: the caller waits for each read and write
    bool two_places = false;              // the file has room for two of each block
    std::string name = "state";           // of what lies in the file
    std::shared_ptr<FileGate> gate = {};  // which reads and writes pass; null: none
  };
  // bytes: of each unit's block; 0 where it has none. Throws as ScratchFile does.
  UnitFile(const std::string& directory, std::vector<std::int64_t> bytes, const Options& options);
  UnitFile(const std::string& directory, std::vector<std::int64_t> bytes)
      : UnitFile(directory, std::move(bytes), Options()) {}
  ~UnitFile();

  bool has(std::size_t unit) const { return bytes_[unit] > 0; }

  enum class Place : std::uint8_t { same, other };
  // The last loop's writes may be in flight, and begin() waits for those of its buffers only. to, from: the places that the
  // loop writes and reads.
  void begin(std::vector<std::size_t> order, Place to = Place::same, Place from = Place::same);
  Tensor take(std::size_t unit);  // empty for a unit that has no block
  void give_back(std::size_t unit, bool writes = true);
  void end();
  // What the last loop has written to other places is what the blocks hold now. Returns their units.
  std::vector<std::size_t> accept();

  // For a block, of type u8 and as long as it, with room behind it up to the end of the file's last page.
  Tensor memory(std::size_t unit) const;
  // A read waits for the writes before it. The Work holds the memory.
  Work read(std::size_t unit, const Tensor& to);
  Work write(std::size_t unit, const Tensor& from, const Work& after);

  // With two places: each block's places change roles, for all that is begun from now on.
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
  Place place_ = Place::same, from_ = Place::same;  // which the loop writes and reads
  Stream in_, out_;
  std::atomic<std::int64_t> read_ = 0, written_bytes_ = 0;
};

// A block, or a file's memory for it, as elements of such a type.
inline Tensor elements_in(const Tensor& block, DType dtype) {
  return block.view(std::size_t{0}, {block.size() / static_cast<std::int64_t>(size_of(dtype))}, dtype);
}

}  // namespace stretto
