import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/**
 * HDFS with one data node, kept in the first directory that is given, with the second one in it as /broker. Says READY,
 * its port and its web address; ends with stdin.
 */
public class MiniHdfs {
    public static void main(String[] args) throws Exception {
        Configuration conf = new Configuration();
        conf.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, args[0]);
        // How long each file waits for the first time to hear that its last block has arrived.
        conf.setInt("dfs.client.block.write.locateFollowingBlock.initial.delay.ms", 5);
        MiniDFSCluster cluster = new MiniDFSCluster.Builder(conf).numDataNodes(1).build();
        cluster.waitActive();
        cluster.getFileSystem().copyFromLocalFile(new Path(args[1]), new Path("/broker"));
        System.out.println("READY " + cluster.getNameNodePort() + " " + cluster.getHttpUri(0));
        while (System.in.read() >= 0) {
        }
        Runtime.getRuntime().halt(0);
    }
}
