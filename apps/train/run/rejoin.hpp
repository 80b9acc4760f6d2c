#pragma once
#include "stretto/communicator.hpp"
#include "stretto/launch.hpp"

namespace apps {

// --rejoin: processes take the places of ranks that are lost. The processes of the job agree through memory that they share,
// in which the secret of a meeting lies, too.
//
// A program has one object. It must be made before ranks are forked.
class Rejoin {
 public:
  // ranks: of the whole job; most: how often processes start.
  Rejoin(int ranks, int most);
  Rejoin(const Rejoin&) = delete;
  Rejoin& operator=(const Rejoin&) = delete;

  bool any() const { return most_ > 0; }
  // LaunchOptions::Replacements::wanted: some only when those that are left have begun to train without the lost ones. When
  // all starts are used up and those that wait are too few, these end.
  int wanted(int left);
  // In the parent: all ranks start again.
  void starts_again();
  // LaunchOptions::Replacements::join: waits until the job takes this process in. Ends the process if the job ends before,
  // or if it never will.
  stretto::Communicator join();
  bool joined() const { return joined_; }

  // Rank 0 says how many ranks train; 0: they have lost one, and regroup.
  void trains_on(const stretto::Communicator& ranks);
  void regroups(const stretto::Communicator& ranks);
  void ends(const stretto::Communicator& ranks);
  // Whether all that lack have come. Collective; costs a broadcast of 8 bytes while some lack.
  bool is_complete(const stretto::Communicator& ranks) const;
  // Returns the whole job. Collective. If not all of it meets, throws on all ranks; those that have come wait on, and it may
  // be called again.
  stretto::Communicator take_in(const stretto::Communicator& ranks);

 private:
  int ranks_, most_;
  int starts_ = 0;
  bool joined_ = false;
};

}  // namespace apps
