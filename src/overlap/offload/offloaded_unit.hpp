#pragma once
#include <vector>

#include "overlap/offload/unit_file.hpp"
#include "stretto/overlap/sharded_unit.hpp"

namespace stretto {

// A unit whose share of the values or of the summed gradients, or both, lie in files of this rank (ZeRO-Infinity;
// Rajbhandari et al. 2021). Every rank reads and writes 1/N of the unit. share() and gradient_share() are the mapped file,
// for access between steps, which must be released behind it (UnitFile::release).
//
// Values come in three stages, each ahead of the next: fetch() reads the share, gather() brings all shares to all ranks, a
// use computes. Gradients go the other way: sum() writes the sums behind the caller; those of a further microbatch read
// them, add, and write them again, so that a rank holds no more than the units in flight.
//
// In a group of one rank nothing is gathered or summed: the memory that is read is the values, and further microbatches add
// to the gradients that were read. The bits are those of values and gradients that stay in memory, at any number of ranks.
class OffloadedUnit : public ShardedUnit {
 public:
  // The files that have a block of this number hold the unit's; a null file has none. Both must outlive the unit.
  struct Files {
    UnitFile* values = nullptr;
    UnitFile* gradients = nullptr;
    std::size_t block = 0;

    bool any() const { return has(values) || has(gradients); }
    bool has(const UnitFile* file) const { return file != nullptr && file->has(block); }
  };
  OffloadedUnit(Communicator gathers, Communicator sums, std::vector<Shape> shapes, DType dtype, DType gradient_dtype,
                Options options, const Files& files);

  void fetch() override;
  [[nodiscard]] Work gather(const Stream& stream) override;

  void used_for(Pass pass, int microbatch) override;
  const std::vector<Tensor>& gradients() override;
  void discard_gradients() override;
  [[nodiscard]] Work sum(const Stream& stream) override;
  // Together with UnitFile::exchange() of the file of gradients.
  void exchange_gradients() override;

  // If gradients lie in a file: a caller that has written gradient_share() must call it before squares().
  void gradients_changed() { *squares_ = squares_of(gradients_in_file_); }

  // If gradients lie in a file: for each of owned() the sum of squares, by kernels::sum_of_squares, of the summed gradients;
  // of the earlier set if there are two.
  const std::vector<double>& squares() const { return earlier_squares_ ? *earlier_squares_ : *squares_; }

 private:
  void read_sums();
  std::vector<double> squares_of(const Tensor& gradient_share) const;
  Work note_and_write(const Stream& stream, const Tensor& block);

  Files files_;
  DType dtype_, gradient_dtype_;
  Tensor in_file_, gradients_in_file_, earlier_in_file_;  // the mapped shares
  struct Coming {                                         // a block that is being read, or has been
    Tensor memory;
    Work arrived;
  };
  Coming values_, sums_;
  Tensor added_to_;  // in a group of one rank: the block that gradients() are views of
  std::shared_ptr<std::vector<double>> squares_, earlier_squares_;  // sums in flight write theirs
};

}  // namespace stretto
