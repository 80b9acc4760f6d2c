#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "stretto/models/fill_slot.hpp"
#include "stretto/require_same.hpp"

namespace apps {

// What is trained and validated on: the sequence that each slot of a step gets, a function of the seed and of global numbers
// only, never of the layout.
class TrainingData {
 public:
  TrainingData() = default;
  virtual ~TrainingData() = default;
  TrainingData(const TrainingData&) = delete;
  TrainingData& operator=(const TrainingData&) = delete;

  // The slots of the step before which so many sequences were consumed. The object must outlive the result.
  virtual stretto::FillSlot training_slots(std::int64_t consumed) const = 0;
  virtual stretto::FillSlot validation_slots() const = 0;
  virtual std::int64_t validation_windows() const = 0;  // of these

  // Throws Error(io) for data that would end a run later, as far as a fraction of a second finds them.
  virtual void check_first_tokens() const = 0;
  virtual bool is_bytes() const = 0;
  // The values that must be the same on all ranks, by flag.
  virtual std::vector<stretto::NamedValue> contents() const = 0;
  // Returns one line for people.
  virtual std::string description() const = 0;
};

}  // namespace apps
