#include "task.hpp"

namespace stretto::mpi_door {

void Task::pack() {
  input.pack();
  for (Message& message : messages) {
    if (message.sends) message.carried.pack();
  }
  for (const ToItself& own : to_itself) {
    copy_elements(own.from, own.from_count, own.from_type, own.to, own.to_count, own.to_type);
  }
}

Work Task::start(const Communicator& communicator, const Stream& stream) {
  if (!is_messages) return communicator.start(call, stream);
  OperationGroup together;
  for (Message& message : messages) {
    Carried& bytes = message.carried;
    if (message.sends) {
      communicator.send(bytes.data(), bytes.bytes(), DType::u8, message.peer, stream);
    } else {
      communicator.recv(bytes.data(), bytes.bytes(), DType::u8, message.peer, stream);
    }
  }
  return together.end();
}

void Task::unpack() {
  output.unpack();
  for (Message& message : messages) {
    if (!message.sends) message.carried.unpack();
  }
}

}  // namespace stretto::mpi_door
