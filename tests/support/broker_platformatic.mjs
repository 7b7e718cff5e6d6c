// A group's consumer of @platformatic/kafka reads what its producer wrote. Argument: ADDRESS.
import { Admin, Consumer, Producer, stringDeserializers, stringSerializers } from '@platformatic/kafka'

const common = { clientId: 'x', bootstrapBrokers: [process.argv[2]] }
const topic = 'platformatic'
const admin = new Admin(common)
await admin.createTopics({ topics: [topic], partitions: 2, replicas: 1 })
const producer = new Producer({ ...common, serializers: stringSerializers })
const messages = Array.from({ length: 50 }, (_, n) => ({ topic, key: `${n}`, value: `v${n}` }))
await producer.send({ acks: -1, messages })
const consumer = new Consumer({ ...common, groupId: 'group', deserializers: stringDeserializers })
const stream = await consumer.consume({ topics: [topic], mode: 'earliest', autocommit: false })
const values = new Set()
for await (const message of stream) {
  values.add(message.value)
  await message.commit()
  if (values.size === 50) break
}
await consumer.close(true)
await producer.close()
await admin.deleteTopics({ topics: [topic] })
await admin.close()
console.log(values.size)
process.exit(0)
