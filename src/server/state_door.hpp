#pragma once
#include <functional>
#include <list>
#include <string>
#include <thread>

#include "transport/bootstrap/handshake.hpp"
#include "transport/bootstrap/job.hpp"
#include "transport/bootstrap/socket.hpp"

namespace stretto {

// The two kinds of doors: the names of the state, of the rank that has it, and of the setting of the door's port.
struct DoorKind {
  const char* name;
  const char* who;      // has it
  const char* setting;  // of the port
};
inline constexpr DoorKind servers_door{"the state of servers", "server", "STRETTO_SERVERS_PORT"};
inline constexpr DoorKind programs_door{"the state of programs", "scheduler", "STRETTO_PROGRAMS_PORT"};

// The address of a door, and the job's secret. host: as the one who asks names it; seconds: how long that one waits.
Meeting place_of_door(int port, const std::string& host = "", double seconds = 60);

// A TCP port and a thread, which tells this rank's state to everybody who asks and knows the job's secret. The thread sleeps
// while nobody asks, and never waits for a single connection: it drops one that does not prove the secret within ten
// seconds, one that does not read its answer within five, and the oldest of more than 16 of either.
class StateDoor {
 public:
  // meeting: the port, and the secret. Without a secret or STRETTO_INSECURE, only this host reaches the port. The thread
  // calls state(). Throws Error(unavailable) if the port is taken.
  StateDoor(const Meeting& meeting, const RankIntroduction& self, std::function<std::string()> state,
            const DoorKind& kind = servers_door);
  ~StateDoor();
  StateDoor(const StateDoor&) = delete;
  StateDoor& operator=(const StateDoor&) = delete;

  int port() const { return port_; }

 private:
  struct Answer {
    Socket socket;
    std::string bytes;     // the length of the text, and the text
    std::size_t sent = 0;  // of them
    double since = 0;
  };
  void run();
  void accept_one();
  bool look(Arriving& one);          // returns true if the connection needs no further look
  static bool send(Answer& answer);  // returns true if all is sent or the reader is gone

  DoorKind kind_;
  RankIntroduction self_;
  Hash key_;
  std::function<std::string()> state_;
  Socket listener_, stop_;
  int port_ = 0;
  double deaf_until_ = 0;  // without a descriptor for the next connection
  std::list<Arriving> arriving_;
  std::list<Answer> answers_;
  std::thread thread_;
};

// The state that a door tells. Throws Error(unavailable) or Error(invalid_argument) with the reason if it tells none.
std::string state_behind(const Meeting& meeting, const DoorKind& kind = servers_door);

}  // namespace stretto
