#pragma once
#include <string>

#include "stretto/error.hpp"

namespace stretto {

// The peer's end of a link is gone: its process has ended, or the connection between the two is broken. The job says a
// moment later which of them it is (naming_losses()).
class LinkBroken : public Error {
 public:
  LinkBroken(int peer, ErrorCode code, const std::string& sentence) : Error(code, sentence), peer_(peer) {}
  int peer() const { return peer_; }  // its rank in the job

 private:
  int peer_;
};

}  // namespace stretto
